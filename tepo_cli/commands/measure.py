"""`tepo measure`: several runs of one model, with one loaded engine."""

from pathlib import Path
from typing import Annotated

import typer


def measure(
    runs: Annotated[
        list[str],
        typer.Argument(help="Each in quotes: 'train OVERRIDES' or 'base OVERRIDES'."),
    ],
    store: Annotated[Path | None, typer.Option(help="Folder of runs (default: runs/).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Measure trained runs and bases of one model on the benchmarks of their data, as a study does it: with the sampler
    that they train with, loaded once."""
    from tepo_cli.measure_runs import show_measured

    show_measured(runs, store, quiet=quiet)
