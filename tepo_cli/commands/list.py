"""`tepo list`: what can be run, and what has been run."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tepo_cli.options import Store

if TYPE_CHECKING:
    from tepo.training.run_folder import RunFolder

_SHOWN = 40


def listing(
    store: Store = Path("runs"),
    every: Annotated[bool, typer.Option("--all", help="Every run, one plain line each.")] = False,
) -> None:
    """Studies, objectives, models, data and benchmarks that can be named, and the runs in the store."""
    from rich.table import Table

    from tepo import paths
    from tepo.config.compose import GROUPS, options
    from tepo.studies.study import study_names
    from tepo_cli.screen import fixed, show

    names = Table(fixed("what"), "names", title="what can be run", show_lines=True)
    names.add_row("tepo ablate", ", ".join(study_names()))
    names.add_row("tepo eval", ", ".join(paths.names("evals")))
    for group in GROUPS:
        names.add_row(f"{group}=", ", ".join(options(group)))
    show(names)
    _runs(store, every)


def _runs(store: Path, every: bool) -> None:
    """The newest runs as a table, or all of them as plain lines (a rich table of thousands takes longer than reading
    them)."""
    from rich.table import Table

    from tepo.training.find_run import runs
    from tepo_cli.screen import fixed, show

    there = runs(store)
    if not there:
        print(f"no runs in {store} yet: try `tepo train` or `tepo ablate panel-e`")
        return
    if every:
        for run in there:
            print(*_line(run))
        return
    table = Table(
        *map(fixed, ("run", "objective", "model", "data", "seed")), "status", *map(fixed, ("steps", "measured"))
    )
    newest = sorted(there, key=lambda run: os.path.getmtime(run.path))[-_SHOWN:]
    for run in newest:
        table.add_row(*_line(run))
    print(
        f"runs in {store}"
        + (f": the newest {len(newest)} of {len(there)}; --all lists every one" if len(there) > len(newest) else "")
    )
    show(table)


def _line(run: "RunFolder") -> list[str]:
    """One run's line; of a folder that was copied half, or that a version with other keys wrote, only that."""
    from tepo.errors import UserError

    try:
        return _complete_line(run)
    except (UserError, OSError, ValueError, KeyError, TypeError):  # ValueError: not JSON
        return [run.path.name, *"––––", "unreadable: of another version, or copied half", "–", "–"]


def _complete_line(run: "RunFolder") -> list[str]:
    import json

    from tepo.training.run_folder import outcome_of
    from tepo.training.run_id import RECIPE

    config = json.loads(run.config_file.read_bytes())["full"]
    manifest, total = run.manifest(), config["train"]["steps"]
    status = outcome_of(manifest) + (", by another version" if manifest and manifest["recipe"] != RECIPE else "")
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
