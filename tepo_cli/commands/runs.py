"""`tepo list`: what can be run, the runs of a store, and those that train."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tepo.common.errors import UserError
from tepo_cli.cli_options import Store

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from tepo.reporting.progress import Screen
    from tepo.store.live_runs import LiveRun
    from tepo.store.run_folder import RunFolder


_SHOWN = 40


def listing(
    store: Store = Path("runs"),
    every: Annotated[bool, typer.Option("--all", help="Every run, one plain line each.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow the runs that train, with their curves, until Ctrl-C.")
    ] = False,
) -> None:
    """List what can be run, and the runs in the store.

    Studies, objectives, models, data and benchmarks can be named. A name with a folder behind it is a file in a
    folder of TEPO_PATH.

    With --watch the runs that are being trained and those that have just ended are shown: start it beside a study. In a
    pipe it looks once."""
    if watch:
        _watch(store)
        return
    from rich.table import Table

    from tepo.common.paths import GROUPS, PYTHON
    from tepo.common.paths import names as names_of
    from tepo.studies.study import CLAIMS
    from tepo_cli.screen import fixed, show

    names = Table(fixed("what"), "names", title="what can be run", show_lines=True)
    names.add_row("tepo ablate", ", ".join(_named("experiments", "ablations", without=CLAIMS)))
    names.add_row("tepo eval", ", ".join(_named("evals")))
    for group in GROUPS:
        names.add_row(f"{group}=", ", ".join(_named(group)))
    for kind in PYTHON:
        if names_of(kind):
            names.add_row(f"{kind}:", ", ".join(_named(kind)))
    show(names)
    _runs(store, every)


def _named(*kinds: str, without: str = "") -> list[str]:
    """Names that a command takes, one of a user's own with its folder."""
    from tepo.common import paths

    found = {}
    for kind in kinds:
        shipped = paths.shipped(kind)
        for name, path in paths.files(kind).items():
            own = "" if path.parent == shipped else f" ({path.parent})"
            hides = own and (shipped / path.name).is_file()
            found[name] = name + (f"{own[:-1]}, in place of the shipped one)" if hides else own)
    return [found[name] for name in sorted(found) if name != without]


def _runs(store: Path, every: bool) -> None:
    """The newest runs as a table, or all of them as plain lines (a rich table of thousands takes longer than reading
    them)."""
    from rich.table import Table

    from tepo.store.find_run import runs
    from tepo_cli.screen import fixed, show

    there = runs(store)
    if not there:
        print(f"no runs in {store} yet: try `tepo train` or `tepo ablate panel-e`")
        return
    if every:
        for line in _lines(there):
            print(*filter(None, line))
        return
    names, sizes = map(fixed, ("run", "objective", "model", "data", "seed")), map(fixed, ("steps", "measured"))
    table = Table(*names, "status", *sizes, "set apart by")
    newest = sorted(there, key=lambda run: os.path.getmtime(run.path))[-_SHOWN:]
    for line in _lines(newest):
        table.add_row(*line)
    more = f": the newest {len(newest)} of {len(there)}; --all lists every one" if len(there) > len(newest) else ""
    print(f"runs in {store}{more}")
    show(table)


def _lines(runs: "Sequence[RunFolder]") -> list[list[str]]:
    """A line for each run, with the settings that tell it from others of the same names; of a folder that was copied
    half, or that a version with other keys wrote, only that."""
    from tepo.common.files import parse_json
    from tepo.config.differences import settings_apart
    from tepo.store.run_folder import is_configuration

    lines, configs = [], []
    for run in runs:
        try:
            config = parse_json(run.config_file.read_bytes())["full"]
            if not is_configuration(config):
                raise ValueError
            lines.append(_line(run, config))
        except (UserError, OSError, ValueError, KeyError, TypeError) as error:  # ValueError: not JSON
            reason = (
                error.what if isinstance(error, UserError) else "config.json is missing, cut off or of another version"
            )
            config = {}
            lines.append([run.path.name, *"––––", f"unreadable: {reason}", "–", "–"])
        configs.append(config)
    apart = settings_apart([tuple(line[1:4]) for line in lines], configs)
    return [[*line, settings] for line, settings in zip(lines, apart, strict=True)]


def _line(run: "RunFolder", config: dict[str, Any]) -> list[str]:
    from tepo.store.run_folder import outcome_of
    from tepo.store.run_id import RECIPE

    manifest, total = run.manifest(), config["train"]["steps"]
    status = outcome_of(manifest)
    if manifest and manifest.get("recipe") != RECIPE:
        status += ", by another recipe"
    elif manifest:
        try:
            status += (unknown := run.check_config()) and f", {unknown}"
        except UserError as error:
            status += f", and not used: {error.what}"
    if manifest.get("status") == "finished":
        steps = manifest.get("steps", total)
    else:
        steps = run.metrics_file.read_bytes().count(b"\n") if run.metrics_file.exists() else 0
    names = [config[group]["name"] for group in ("objective", "model", "data")]
    return [run.path.name, *names, str(config["seed"]), status, f"{steps}/{total}", str(len(run.measured()))]


_PAUSE = 1  # second between two looks
_SPARKS, _LONGEST, _SHORTEST = 16, 40, 3  # characters of a curve: where the screen has no edge, and on a screen
_CURVES = ("reward", "entropy", "length")


def _watch(store: Path) -> None:
    """Look at the store alone, again and again until Ctrl-C; once in a pipe."""
    from rich.live import Live

    from tepo.reporting.progress import Screen
    from tepo.store.live_runs import live_runs

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


def _cells(run: "LiveRun", sparks: int = _SPARKS) -> list[str]:
    from tepo.store.live_runs import duration, sparkline

    curves = (
        f"{sparkline(values, sparks)} {values[-1]:{form}}" if values else ""
        for values, form in ((run.rewards, "6.1%"), (run.entropies, ".3f"), (run.lengths, ".0f"))
    )
    left = "" if run.left is None else duration(run.left)
    return [run.id, run.objective, str(run.seed), f"{run.step}/{run.steps}", *curves, left, run.status]


def _head(runs: "Sequence[LiveRun]", store: Path) -> str:
    from tepo.store.live_runs import CLOSED, RECENT, SILENCE, duration

    running = sum(run.status == "running" for run in runs)
    others = {state: sum(run.status.startswith(state) for run in runs) for state in (SILENCE, CLOSED)}
    ended = f"{len(runs) - running - sum(others.values())} ended in the last {duration(RECENT)}"
    return ", ".join([f"{store}: {running} running", ended, *(f"{n} {state}" for state, n in others.items() if n)])


def _plain(runs: "Sequence[LiveRun]", store: Path) -> str:
    """A line a run, in which each curve has its name before it."""
    lines = [_head(runs, store)]
    for run in runs:
        cells = _cells(run)
        for index, name in enumerate(_CURVES, start=4):
            cells[index] = cells[index] and f"{name} {cells[index]}"
        lines.append("  ".join(filter(None, cells)))
    return "\n".join(lines)


def _table(runs: "Sequence[LiveRun]", store: Path, screen: "Screen") -> "RenderableType":
    """As many runs as the screen has lines, with curves as long as it has columns for; lines where it is too narrow for
    a table."""
    from rich.measure import Measurement

    lines = max(1, screen.height - 6)
    least = Measurement.get(screen, screen.options.update(width=10_000), _grid(runs[:lines], 0)).maximum
    sparks = min(_LONGEST, (screen.width - least) // len(_CURVES))
    if sparks < _SHORTEST:
        return _plain(runs[: lines // 2], store)
    table = _grid(runs[:lines], sparks)
    table.title, table.title_justify = _head(runs, store), "left"
    table.caption = f"and {len(runs) - lines} more" if len(runs) > lines else None
    return table


def _grid(runs: "Sequence[LiveRun]", sparks: int) -> "Table":
    from rich.table import Table

    from tepo_cli.screen import fixed

    heads = ("run", "objective", "seed", "step", *_CURVES, "left", "status")
    table = Table(*map(fixed, heads), box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for run in runs:
        table.add_row(*_cells(run, sparks))
    return table
