"""The runs that train, on the screen."""

import math
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table

from tepo.common.errors import UserError
from tepo.reporting.progress import Screen
from tepo.store.live_runs import CLOSED, RECENT, SILENCE, LiveRun, duration, live_runs
from tepo_cli.screen import fixed

_PAUSE = 1  # second between two looks
_FIGURES = ("reward", "entropy", "length")


def show_live_runs(store: Path) -> None:
    """Look at the store alone, again and again until Ctrl-C; once in a pipe."""
    if not store.is_dir():
        raise UserError("no such folder", where=f"--store {store}", fix="the store of the study, as given to it")
    screen = Screen()
    if not screen.is_terminal:
        print(_plain(live_runs(store), store))
        return
    try:
        with Live(console=screen, auto_refresh=False, vertical_overflow="ellipsis") as live:
            while True:
                live.update(_table(live_runs(store), store, screen), refresh=True)
                time.sleep(_PAUSE)
    except KeyboardInterrupt:  # how it is meant to end
        return


def _cells(run: LiveRun) -> list[str]:
    figures = (
        "" if math.isnan(value) else f"{value:{form}}"
        for value, form in ((run.reward, ".1%"), (run.entropy, ".3f"), (run.length, ".0f"))
    )
    left = "" if run.left is None else duration(run.left)
    return [run.id, run.objective, str(run.seed), f"{run.step}/{run.steps}", *figures, left, run.status]


def _head(runs: Sequence[LiveRun], store: Path) -> str:
    running = sum(run.status == "running" for run in runs)
    others = {state: sum(run.status.startswith(state) for run in runs) for state in (SILENCE, CLOSED)}
    ended = f"{len(runs) - running - sum(others.values())} ended in the last {duration(RECENT)}"
    return ", ".join([f"{store}: {running} running", ended, *(f"{n} {state}" for state, n in others.items() if n)])


def _plain(runs: Sequence[LiveRun], store: Path) -> str:
    """A line a run, in which each figure has its name before it."""
    lines = [_head(runs, store)]
    for run in runs:
        cells = _cells(run)
        for index, name in enumerate(_FIGURES, start=4):
            cells[index] = cells[index] and f"{name} {cells[index]}"
        lines.append("  ".join(filter(None, cells)))
    return "\n".join(lines)


def _table(runs: Sequence[LiveRun], store: Path, screen: Screen) -> RenderableType:
    """As many runs as the screen has lines; lines where it is too narrow for a table."""
    lines = max(1, screen.height - 6)
    table = _grid(runs[:lines])
    if Measurement.get(screen, screen.options.update(width=10_000), table).maximum > screen.width:
        return _plain(runs[: lines // 2], store)
    table.title, table.title_justify = _head(runs, store), "left"
    table.caption = f"and {len(runs) - lines} more" if len(runs) > lines else None
    return table


def _grid(runs: Sequence[LiveRun]) -> Table:
    heads = ("run", "objective", "seed", "step", *_FIGURES, "left", "status")
    table = Table(*map(fixed, heads), box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for run in runs:
        table.add_row(*_cells(run))
    return table
