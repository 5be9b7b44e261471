"""`tepo watch`: the running studies of a store, from another terminal."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tepo_cli.options import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from tepo.reporting.progress import Screen
    from tepo.store.live_runs import LiveRun

_SPARKS = 16  # characters of a curve where the screen has no edge
_LONGEST, _SHORTEST = 40, 4  # of one in a terminal


def watch(
    store: Store = Path("runs"),
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end; so it is in a pipe.")] = False,
) -> None:
    """Show the runs that are being trained, and those that have just ended, with their reward and entropy so far.

    Reads the store alone: start it beside a study, end it with Ctrl-C."""
    import time

    from rich.live import Live

    from tepo.common.errors import UserError
    from tepo.reporting.progress import Screen
    from tepo.store.live_runs import live_runs

    if not store.is_dir():
        raise UserError("no such folder", where=f"--store {store}", fix="the store of the study, as given to it")
    screen = Screen()
    if once or not screen.is_terminal:
        for line in _plain(live_runs(store), store):
            print(line)
        return
    try:
        with Live(console=screen, auto_refresh=False, vertical_overflow="ellipsis") as live:
            while True:
                live.update(_table(live_runs(store), store, screen), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:  # how it is meant to end
        return


def _cells(run: "LiveRun", sparks: int = _SPARKS) -> list[str]:
    from tepo.store.live_runs import duration, sparkline

    reward = f"{100 * run.rewards[-1]:5.1f}%" if run.rewards else ""
    entropy = f"{run.entropies[-1]:.3f}" if run.entropies else ""
    return [
        run.id,
        run.objective,
        str(run.seed),
        f"{run.step}/{run.steps}",
        f"{sparkline(run.rewards, sparks)} {reward}".strip(),
        f"{sparkline(run.entropies, sparks)} {entropy}".strip(),
        "" if run.left is None else duration(run.left),
        run.status,
    ]


def _head(runs: "Sequence[LiveRun]", store: Path) -> str:
    from tepo.store.live_runs import RECENT, SILENCE, duration

    running = sum(run.status == "running" for run in runs)
    silent = sum(run.status.startswith(SILENCE) for run in runs)
    ended = f"{len(runs) - running - silent} ended in the last {duration(RECENT)}"
    return f"{store}: {running} running, {ended}" + (f", {silent} silent" if silent else "")


def _plain(runs: "Sequence[LiveRun]", store: Path) -> list[str]:
    return [_head(runs, store), *("  ".join(filter(None, _cells(run))) for run in runs)]


def _table(runs: "Sequence[LiveRun]", store: Path, screen: "Screen") -> "RenderableType":
    """As many runs as the screen has lines, with curves as long as it has columns for; lines where it is too narrow for
    a table."""
    from rich.measure import Measurement

    lines = max(1, screen.height - 6)
    for sparks in range(_LONGEST, _SHORTEST, -1):
        table = _grid([_cells(run, sparks) for run in runs[:lines]])
        if Measurement.get(screen, screen.options.update(width=10_000), table).maximum <= screen.width:
            table.title, table.title_justify = _head(runs, store), "left"
            table.caption = f"and {len(runs) - lines} more" if len(runs) > lines else None
            return table
    return "\n".join(_plain(runs[: lines // 2], store))


def _grid(rows: list[list[str]]) -> "Table":
    from rich.table import Table

    from tepo_cli.screen import fixed

    heads = ("run", "objective", "seed", "step", "reward", "entropy", "left", "status")
    table = Table(*map(fixed, heads), box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for cells in rows:
        table.add_row(*cells)
    return table
