"""`tepo train`: one run."""

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Hydra overrides, e.g. objective=gspo seed=3 train.steps=40", show_default=False),
]


def train(
    context: typer.Context,
    overrides: Overrides = None,
    store: Annotated[Path | None, typer.Option(help="Folder of runs (default: runs/).")] = None,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Measure the finished run on the benchmarks of its data.")
    ] = False,
    validate: Annotated[
        bool, typer.Option("--validate", help="Measure the finished run on validation problems.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration and the plan; train nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Train one policy. Groups: objective= model= scale= data= sampler= engine=. A finished run is never trained
    twice."""
    from tepo_cli.compose_run import compose_run, describe_run

    config = compose_run(overrides or [], store)
    if dry_run:
        describe_run(config)
        return
    from tepo.jobs.measure import After
    from tepo_cli.train_run import run_training

    run_training(config, After(evaluate, validate), quiet=quiet, hand_over=context.obj)
