"""`tepo train`: one run."""

from typing import Annotated

import typer

from tepo.common.errors import UserError
from tepo_cli.cli_options import Lines, Quiet, StoreOfRun, compose_run, formula_words

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Hydra overrides, e.g. objective=gspo seed=3 train.steps=40", show_default=False),
]

_EVALUATE = "Measure the finished run on the benchmarks of its data."
_DRY_RUN = "Say what would be trained, how long it takes, where it lies and its first prompt; train nothing."
_SHOW_CONFIG = "With --dry-run: print the resolved configuration as YAML, and for GPUs all that is planned."
_SHOW_TOKENS = "With --dry-run: the whole first prompt, token by token."


def train(
    overrides: Overrides = None,
    store: StoreOfRun = None,
    evaluate: Annotated[bool, typer.Option("--evaluate", help=_EVALUATE)] = False,
    validate: Annotated[bool, typer.Option("--validate", help="Measure it on validation problems.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=_DRY_RUN)] = False,
    show_config: Annotated[bool, typer.Option("--show-config", help=_SHOW_CONFIG)] = False,
    show_tokens: Annotated[bool, typer.Option("--show-tokens", help=_SHOW_TOKENS)] = False,
    formula: Lines = None,
    quiet: Quiet = False,
) -> None:
    """Train one policy. Groups: objective= model= scale= data= sampler= engine=. A finished run is never trained
    twice."""
    config = compose_run([*(overrides or ()), *formula_words(formula)], store)
    if dry_run:
        from tepo_cli.show_run import describe_run

        describe_run(config, evaluate=evaluate, validate=validate, tokens=show_tokens, full=show_config)
        return
    if show_tokens or show_config:
        where = "--show-tokens" if show_tokens else "--show-config"
        raise UserError("that is shown of a run in place of training it", where=where, fix="add --dry-run")
    from tepo.reporting.progress import waiting

    with waiting(f"loading torch for {config.model.name}", quiet):
        from tepo.jobs.job import RunJob
        from tepo_cli.train_run import run_training

    run_training(RunJob(config, evaluate=evaluate, validate=validate, quiet=quiet))
