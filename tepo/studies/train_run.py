"""What `tepo train` does: train, draw the curves, measure if asked. Imported when it runs."""

from tepo.config.schema import RunConfig
from tepo.studies.plan import check_measurable
from tepo.training.checks import check_validation_problems
from tepo.training.distributed import rank
from tepo.training.loop import train
from tepo.training.run_folder import RunFolder
from tepo.words import counted
from tepo_cli.measure_run import measure_and_record
from tepo_cli.screen import bar, say


def run_training(config: RunConfig, *, evaluate: bool, validate: bool, quiet: bool) -> None:
    """Train, draw the curves, measure and validate if asked, and say where things lie."""
    if evaluate:
        check_measurable(config)  # now, not after an hour of training
    if validate:
        check_validation_problems(config)
    run = RunFolder.of(config)
    before = len(run.metrics())
    with bar(f"{config.objective['name']} seed {config.seed}", config.train.steps, quiet) as advance:
        train(
            config,
            lambda step, row: advance(
                step, f"reward {row['critic/score/mean']:.3f}  grad {row['actor/grad_norm']:.2f}"
            ),
        )
    if rank() > 0:
        return
    _draw_curves(run, config)
    ending = run.ending()
    say(f"run {run.path.name}: {counted(len(run.metrics()), 'step')}, {run.path}")
    if ending is not None:
        weights = f"those after step {ending.step - 1}" if ending.step > 1 else "those it started from"
        say(f"training ended with {ending}: {ending.why}. The run counts as finished; its weights are {weights}")
    benchmarks = config.data.benchmarks if evaluate else []
    measure_and_record(config, benchmarks, run.metrics()[before:], validate=validate, quiet=quiet)


def _draw_curves(run: RunFolder, config: RunConfig) -> None:
    """Training curves as PNG and SVG in the run's `figures/`."""
    from tepo.reporting.curves import RunCurves, save, training_figure

    name = config.objective["name"]
    curves = RunCurves(name, name, config.seed, run.metrics(), ended=run.ending() is not None)
    if curves.rows:  # none where training ended with the first step
        save(training_figure([curves]), run.figures, "training")
