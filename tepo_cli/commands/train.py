"""`tepo train`: one run."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tepo.common.errors import UserError
from tepo_cli.cli_options import Jobs, Lines, Quiet, StoreOfRun, compose_run, formula_words

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Hydra overrides, e.g. objective=gspo seed=3 train.steps=40", show_default=False),
]

_EVALUATE = "Measure the finished run on the benchmarks of its data."
_DRY_RUN = "Say what would be trained, how long it takes, where it lies and its first prompt; train nothing."
_SHOW_CONFIG = "With --dry-run: print the resolved configuration as YAML, and for GPUs all that is planned."
_MULTIRUN = "As Hydra's: a sweep. Several values make one without it."
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
    multirun: Annotated[bool, typer.Option("--multirun", "-m", help=_MULTIRUN)] = False,
    jobs: Jobs = None,
    quiet: Quiet = False,
) -> None:
    """Train one policy. Groups: objective= model= scale= data= sampler= engine=. A finished run is never trained
    twice.

    Several values (seed=0,1,2 or seed=range(3), objective=gspo,tepo, train.learning_rate=1e-4,4e-4) make a sweep: a run
    for each combination, measured, and a table.

    \b
    tepo train objective=gspo seed=3 train.steps=40 --evaluate
    tepo train data=FILE model=FOLDER --dry-run
    tepo train objective=gspo,tepo seed=range(3) --jobs 2"""
    words = [*(overrides or ()), *formula_words(formula)]
    from tepo.studies.sweep import axes_of

    if axes := axes_of(words):
        run_flags = {"--validate": validate, "--show-tokens": show_tokens, "--show-config": show_config}
        if alone := [option for option, flag in run_flags.items() if flag]:
            raise UserError(f"{' and '.join(alone)} of a sweep", where=" ".join(words), fix="give each key one value")
        _sweep(words, axes, store, jobs, dry_run=dry_run, quiet=quiet)
        return
    if multirun or (jobs or 1) > 1:
        where = "--multirun" if multirun else f"--jobs {jobs}"
        fix = "list several values: seed=0,1 or seed=range(3)"
        raise UserError("one run, as no key has several values", where=where, fix=fix)
    from tepo.training.run import Run

    run = Run(compose_run(words, store))
    if dry_run:
        from tepo_cli.show_run import describe_run

        describe_run(run, evaluate=evaluate, validate=validate, tokens=show_tokens, full=show_config)
        return
    if show_tokens or show_config:
        where = "--show-tokens" if show_tokens else "--show-config"
        raise UserError("this option describes a run that is not trained", where=where, fix="add --dry-run")
    from tepo.reporting.progress import waiting
    from tepo_cli.show_result import is_complete, show_finished

    folder = run.folder  # before torch is loaded: it names files that are missing
    benchmarks = run.config.data.benchmarks if evaluate else ()
    if not validate and "RANK" not in os.environ and is_complete(folder, benchmarks):
        show_finished(run, words, evaluate=evaluate)
        return
    with waiting(f"loading torch for {run.config.model.name}", quiet):
        from tepo.training.preflight import check_golds, check_settings

        if "RANK" not in os.environ and not folder.finished():  # seconds before transformers is loaded
            check_settings(run)
            check_golds(run.config)
        from tepo.jobs.job import RunJob
        from tepo_cli.train_run import run_training

    run_training(RunJob(run, evaluate=evaluate, validate=validate, quiet=quiet), words)


def _sweep(
    words: list[str],
    axes: dict[str, list[str]],
    store_option: Path | None,
    jobs: int | None,
    *,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Run every combination as a study does, and print its table."""
    from tepo.common import trust
    from tepo.launch.run_units import Slots, run_planned
    from tepo.studies.planned_facts import read_facts
    from tepo.studies.sweep import plan_sweep
    from tepo_cli.show_plan import show_count, show_units
    from tepo_cli.study_outputs import show_tables

    trust.say([*words, *(f"{key}={value}" for key, values in axes.items() for value in values)])
    store = store_option or Path(compose_run([word for word in words if word.startswith("store=")], None).store)
    planned = plan_sweep(words, axes, store)
    ((_, units),) = planned
    if dry_run:
        from tepo.launch.unit_checks import check_rows

        check_rows(units)
        show_count(units)
        show_units(units)
        return
    run_planned(lambda: planned, Slots(jobs=jobs), quiet)
    show_tables(*read_facts(planned), "terminal")
