"""`tepo list` and `tepo watch`: the runs of a store, and what can be run."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tepo.common.errors import UserError
from tepo_cli.cli_options import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from tepo.reporting.progress import Screen
    from tepo.store.live_runs import LiveRun
    from tepo.store.run_folder import RunFolder


_SHOWN = 40


def listing(
    what: Annotated[str | None, typer.Argument(help="objectives: each with its equation.", show_default=False)] = None,
    store: Store = Path("runs"),
    every: Annotated[bool, typer.Option("--all", help="Every run, one plain line each.")] = False,
) -> None:
    """List what can be run, and the runs in the store.

    Studies, objectives, models, data and benchmarks can be named. A name with a folder behind it is a file in a
    folder of TEPO_PATH."""
    from rich.table import Table

    from tepo.common.errors import unknown_name
    from tepo.common.paths import GROUPS, PYTHON
    from tepo.common.paths import names as names_of
    from tepo.studies.study import CLAIMS
    from tepo_cli.screen import fixed, show

    if what == "objectives":
        _equations()
        return
    if what is not None:
        raise unknown_name("list", what, ["objectives"], where="tepo list")
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


def _equations() -> None:
    """A table of the objectives, each with the lines of its formula."""
    from rich.table import Table

    from tepo.formula.lines import equation
    from tepo.formula.row import load_row, names
    from tepo_cli.screen import fixed, show

    table = Table(fixed("objective"), "equation", title="objectives", show_lines=True)
    for name in names():
        table.add_row(name, "\n".join(equation(load_row(name))))
    show(table)


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
    table = Table(
        *map(fixed, ("run", "objective", "model", "data", "seed")),
        "status",
        *map(fixed, ("steps", "measured")),
        "set apart by",
    )
    newest = sorted(there, key=lambda run: os.path.getmtime(run.path))[-_SHOWN:]
    for line in _lines(newest):
        table.add_row(*line)
    print(
        f"runs in {store}"
        + (f": the newest {len(newest)} of {len(there)}; --all lists every one" if len(there) > len(newest) else "")
    )
    show(table)


def _lines(runs: "Sequence[RunFolder]") -> list[list[str]]:
    """A line for each run, with the settings that tell it from others of the same names; of a folder that was copied
    half, or that a version with other keys wrote, only that."""
    from tepo.common.files import parse_json
    from tepo.config.differences import settings_apart
    from tepo.store.run_identity import is_configuration

    lines, configs = [], []
    for run in runs:
        try:
            config = parse_json(run.config_file.read_bytes())["full"]
            if not is_configuration(config):
                raise ValueError
            lines.append(_line(run, config))
        except (UserError, OSError, ValueError, KeyError, TypeError) as error:  # ValueError: not JSON
            config = {}
            lines.append([run.path.name, *"––––", f"unreadable: {_reason(error)}", "–", "–"])
        configs.append(config)
    apart = settings_apart([tuple(line[1:4]) for line in lines], configs)
    return [[*line, settings] for line, settings in zip(lines, apart, strict=True)]


def _reason(error: Exception) -> str:
    """The reason that a run cannot be read, in a few words."""
    match error:
        case UserError():
            return error.what
        case FileNotFoundError():
            return "no config.json: copied half?"
        case OSError():
            return error.strerror or "cannot be opened"
        case ValueError():
            return "config.json is not JSON: copied half?"
        case _:
            return f"config.json lacks {error}: of another version?"


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
    return [
        run.path.name,
        config["objective"]["name"],
        config["model"]["name"],
        config["data"]["name"],
        str(config["seed"]),
        status,
        f"{steps}/{total}",
        str(len(run.measured())),
    ]


_SPARKS = 16  # characters of a curve where the screen has no edge
_LONGEST, _SHORTEST = 40, 2  # of one in a terminal
_CURVES = ("reward", "entropy", "length")


def watch(
    store: Store = Path("runs"),
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end; so it is in a pipe.")] = False,
) -> None:
    """Follow the runs that train, with their curves.

    Shows those that are being trained, and those that have just ended. Reads the store alone: start it beside a study,
    end it with Ctrl-C."""
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

    curves = (
        f"{sparkline(values, sparks)} {values[-1]:{form}}" if values else ""
        for values, form in ((run.rewards, "6.1%"), (run.entropies, ".3f"), (run.lengths, ".0f"))
    )
    return [
        run.id,
        run.objective,
        str(run.seed),
        f"{run.step}/{run.steps}",
        *curves,
        "" if run.left is None else duration(run.left),
        run.status,
    ]


def _head(runs: "Sequence[LiveRun]", store: Path) -> str:
    from tepo.store.live_runs import CLOSED, RECENT, SILENCE, duration

    running = sum(run.status == "running" for run in runs)
    others = {state: sum(run.status.startswith(state) for run in runs) for state in (SILENCE, CLOSED)}
    ended = f"{len(runs) - running - sum(others.values())} ended in the last {duration(RECENT)}"
    return ", ".join([f"{store}: {running} running", ended, *(f"{n} {state}" for state, n in others.items() if n)])


def _plain(runs: "Sequence[LiveRun]", store: Path) -> list[str]:
    """Lines without a heading, in which each curve has its name before it."""
    lines = []
    for run in runs:
        cells = _cells(run)
        for index, name in enumerate(_CURVES, start=4):
            cells[index] = cells[index] and f"{name} {cells[index]}"
        lines.append("  ".join(filter(None, cells)))
    return [_head(runs, store), *lines]


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

    heads = ("run", "objective", "seed", "step", *_CURVES, "left", "status")
    table = Table(*map(fixed, heads), box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for cells in rows:
        table.add_row(*cells)
    return table
