"""`tepo base`: measure the untrained policy."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.commands.train import Overrides


def base(
    overrides: Overrides = None,
    store: Annotated[Path | None, typer.Option(help="Folder of runs (default: runs/).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Measure the starting policy on the benchmarks of its data (the first row of the paper's tables)."""
    from tepo.jobs.measure import check_measurable
    from tepo_cli.compose_run import compose_run
    from tepo_cli.train_run import run_base

    config = compose_run(overrides or [], store)
    check_measurable(config)
    run_base(config, quiet=quiet)
