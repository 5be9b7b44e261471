"""One run from its configuration: train, draw the curves, measure if asked."""

from typing import Any

from tepo import stopping
from tepo.config.schema import RunConfig
from tepo.errors import UserError
from tepo.reporting.progress import bar
from tepo.studies.fit import fit, needs_reference
from tepo.studies.machines import machine_here
from tepo.studies.measure_run import After, Measured, measure_and_record
from tepo.training.distributed import rank
from tepo.training.loop import train
from tepo.training.memory import Gpus
from tepo.training.run_folder import RunFolder


def train_run(config: RunConfig, after: After, *, quiet: bool) -> Measured | None:
    """Train, draw the curves, then measure. A finished run is not trained again. None on ranks other than the first."""
    rows = train_and_draw(config, after, quiet=quiet)
    return None if rows is None else measure_and_record(config, rows, after, quiet=quiet)


def train_and_draw(config: RunConfig, after: After, *, quiet: bool) -> list[dict[str, Any]] | None:
    """Train and draw the curves. Returns the metrics of the steps this process added, None on ranks other than the
    first. Raises UserError for what cannot be done `after`, before the training."""
    after.check(config)
    run = RunFolder.of(config)
    before = len(run.metrics())
    with bar(f"{config.objective['name']} seed {config.seed}", config.train.steps, quiet) as advance:
        train(
            config,
            lambda step, row: advance(
                step, f"reward {row['critic/score/mean']:.3f}  grad {row['actor/grad_norm']:.2f}"
            ),
            _planned_seconds,
        )
    if rank() > 0:
        return None
    stopping.end_if_asked()  # during the last step
    _draw_curves(run, config)
    return run.metrics()[before:]


def _planned_seconds(config: RunConfig, gpus: Gpus) -> float | None:
    """Planned seconds of a step on the cards here; None on a CPU, for a card or a model that no plan knows, and where
    none fits."""
    import torch

    machine = machine_here(torch.cuda.get_device_name(), gpus) if gpus.bytes else None
    try:
        found = fit(config, machine, reference=needs_reference(config)) if machine else None
    except UserError:  # an unknown shape
        return None
    return None if found is None or found.problem else found.time.total


def _draw_curves(run: RunFolder, config: RunConfig) -> None:
    """Training curves as PNG and SVG in the run's `figures/`."""
    from tepo.reporting.curves import RunCurves, save, training_figure

    name = config.objective["name"]
    curves = RunCurves(name, name, config.seed, run.metrics(), ended=run.ending() is not None)
    if curves.rows:  # none where training ended with the first step
        save(training_figure([curves]), run.figures, "training")
