"""`tepo list`: what can be run, and what has been run."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tepo_cli.options import Store

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN = 40


def listing(store: Store = Path("runs"), every: Annotated[bool, typer.Option("--all", help="Every run, one plain line each.")] = False) -> None:
    """Studies, objectives, models, data and benchmarks that can be named, and the runs in the store."""
    from rich.console import Console
    from rich.table import Table

    from tepo import paths
    from tepo.config.compose import GROUPS, options

    console = Console(markup=False)
    names = Table("kind", "names", title="what can be run", show_lines=True)
    for kind in ("experiments", "ablations"):
        names.add_row(f"{kind} (tepo ablate NAME)", ", ".join(paths.names(kind)))
    names.add_row("benchmarks (tepo eval NAME)", ", ".join(paths.names("evals")))
    for group in GROUPS:
        names.add_row(f"{group}=", ", ".join(options(group)))
    console.print(names)
    _runs(console, store, every)


def _runs(console: "Console", store: Path, every: bool) -> None:
    """The newest runs as a table, or all of them as plain lines (a rich table of thousands takes longer than reading them)."""
    from rich.table import Column, Table

    folders = [entry.path for entry in os.scandir(store) if any(os.path.exists(f"{entry.path}/{name}.json") for name in ("config", "manifest"))] if store.is_dir() else []
    if not folders:
        console.print(f"no runs in {store} yet: try `tepo train` or `tepo ablate panel-e`")
        return
    columns = ("objective", "model", "data", "seed", "status", "steps", "measured")
    if every:
        for folder in sorted(folders):
            print(*_run(folder))
        return
    table = Table(Column("run", no_wrap=True), *(Column(name, overflow="fold") for name in columns), title=f"runs in {store}")
    newest = sorted(folders, key=os.path.getmtime)[-_SHOWN:]
    for folder in newest:
        table.add_row(*_run(folder))
    console.print(table)
    if len(folders) > len(newest):
        console.print(f"the newest {len(newest)} of {len(folders)} runs; --all lists every one")


def _run(folder: str) -> list[str]:
    """One run's line; of a folder that was copied half, or that a version with other keys wrote, only that."""
    try:
        return _whole_run(folder)
    except (OSError, ValueError, KeyError, TypeError):  # ValueError: not JSON
        return [os.path.basename(folder), *"––––", "unreadable: of another version, or copied half", "–", "–"]


def _whole_run(folder: str) -> list[str]:
    import json

    from tepo.training.run_folder import RECIPE

    with open(f"{folder}/config.json", "rb") as file:
        config = json.loads(file.read())["full"]
    try:
        with open(f"{folder}/manifest.json", "rb") as file:
            manifest = json.loads(file.read())
        status = str(manifest["status"]) + ("" if manifest["recipe"] == RECIPE else ", by another version")
    except FileNotFoundError:
        status = "not started"
    total = config["train"]["steps"]
    try:
        steps = total if status == "finished" else Path(folder, "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        steps = 0
    try:
        measured = sum(os.path.exists(f"{entry.path}/result.json") for entry in os.scandir(f"{folder}/eval"))
    except FileNotFoundError:
        measured = 0
    return [os.path.basename(folder), config["objective"]["name"], config["model"]["name"], config["data"]["name"], str(config["seed"]), status, f"{steps}/{total}", str(measured)]
