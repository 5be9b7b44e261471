"""`tepo list`: what can be run, and what has been run."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.options import Store

_SHOWN = 40


def listing(
    store: Store = Path("runs"),
    every: Annotated[bool, typer.Option("--all", help="Every run, one plain line each.")] = False,
) -> None:
    """Studies, objectives, models, data and benchmarks that can be named, and the runs in the store."""
    from rich.table import Table

    from tepo import paths
    from tepo.config.compose import GROUPS, options
    from tepo_cli.screen import show, whole

    names = Table(whole("what"), "names", title="what can be run", show_lines=True)
    names.add_row("tepo ablate", ", ".join([*paths.names("experiments"), *paths.names("ablations")]))
    names.add_row("tepo eval", ", ".join(paths.names("evals")))
    for group in GROUPS:
        names.add_row(f"{group}=", ", ".join(options(group)))
    show(names)
    _runs(store, every)


def _runs(store: Path, every: bool) -> None:
    """The newest runs as a table, or all of them as plain lines (a rich table of thousands takes longer than reading
    them)."""
    from rich.table import Table

    from tepo_cli.screen import show, whole

    folders = (
        [
            entry.path
            for entry in os.scandir(store)
            if any(os.path.exists(f"{entry.path}/{name}.json") for name in ("config", "manifest"))
        ]
        if store.is_dir()
        else []
    )
    if not folders:
        print(f"no runs in {store} yet: try `tepo train` or `tepo ablate panel-e`")
        return
    if every:
        for folder in sorted(folders):
            print(*_run(folder))
        return
    table = Table(
        *map(whole, ("run", "objective", "model", "data", "seed")), "status", *map(whole, ("steps", "measured"))
    )
    newest = sorted(folders, key=os.path.getmtime)[-_SHOWN:]
    for folder in newest:
        table.add_row(*_run(folder))
    print(
        f"runs in {store}"
        + (f": the newest {len(newest)} of {len(folders)}; --all lists every one" if len(folders) > len(newest) else "")
    )
    show(table)


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
    return [
        os.path.basename(folder),
        config["objective"]["name"],
        config["model"]["name"],
        config["data"]["name"],
        str(config["seed"]),
        status,
        f"{steps}/{total}",
        str(measured),
    ]
