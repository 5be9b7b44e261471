"""`tepo list`: what can be run, and what has been run."""

from pathlib import Path

from tepo_cli.options import Store


def listing(store: Store = Path("runs")) -> None:
    """Studies, objectives, models, data and benchmarks that can be named, and the runs in the store."""
    from rich.console import Console
    from rich.table import Table

    from tepo import paths
    from tepo.config.compose import GROUPS, options

    console = Console()
    names = Table("kind", "names", title="what can be run", show_lines=True)
    for kind in ("experiments", "ablations"):
        names.add_row(f"{kind} (tepo ablate NAME)", ", ".join(paths.names(kind)))
    names.add_row("benchmarks (tepo eval NAME)", ", ".join(paths.names("evals")))
    for group in GROUPS:
        names.add_row(f"{group}=", ", ".join(options(group)))
    console.print(names)
    _runs(console, store)


def _runs(console, store: Path) -> None:
    import json

    from rich.table import Column, Table

    table = Table(Column("run", no_wrap=True), "objective", "model", "data", "seed", "status", "steps", "measured", title=f"runs in {store}")
    folders = sorted(path.parent for path in store.glob("*/config.json")) if store.is_dir() else []
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())["full"]
        status = json.loads((folder / "manifest.json").read_text()).get("status", "?") if (folder / "manifest.json").exists() else "not started"
        steps = (folder / "metrics.jsonl").read_bytes().count(b"\n") if (folder / "metrics.jsonl").exists() else 0
        measured = sum(1 for _ in folder.glob("eval/*/result.json"))
        table.add_row(folder.name, config["objective"]["name"], config["model"]["name"], config["data"]["name"], str(config["seed"]), status, f"{steps}/{config['train']['steps']}", str(measured))
    if folders:
        console.print(table)
    else:
        console.print(f"no runs in {store} yet: try `tepo train` or `tepo ablate panel-e`")
