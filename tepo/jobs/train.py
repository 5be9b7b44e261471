"""One run from its configuration: train, draw the curves, measure if asked."""

from typing import Any

from tepo.common import signals
from tepo.common.files import write_atomic
from tepo.config.run_config import RunConfig
from tepo.jobs.measure import After, Measured, measure_run
from tepo.reporting.progress import bar
from tepo.store.run_folder import RunFolder
from tepo.training.distributed.process_group import rank
from tepo.training.loop import train


def train_run(config: RunConfig, after: After, *, quiet: bool) -> Measured | None:
    """Train, draw the curves, then measure. A finished run is not trained again. None on ranks other than the first."""
    rows = train_and_draw(config, after, quiet=quiet)
    return None if rows is None else measure_run(config, rows, after, quiet=quiet)


def train_and_draw(config: RunConfig, after: After, *, quiet: bool) -> list[dict[str, Any]] | None:
    """Train and draw the curves. Returns the metrics of the steps this process added, None on ranks other than the
    first. Raises UserError for what cannot be done `after`, before the training."""
    after.check(config)
    run = RunFolder.of(config)
    before = set(map(repr, run.metrics()))
    name = config.objective["name"]
    with bar(f"{name} seed {config.seed}", config.train.steps, quiet) as advance:

        def show(step: int, row: dict[str, Any]) -> None:
            failed = f"  reward failed {failures:.0f}" if (failures := row.get("reward/failed")) else ""
            advance(step, f"reward {row['critic/score/mean']:.3f}  grad {row['actor/grad_norm']:.2f}{failed}")

        train(config, show)
    if rank() > 0:
        return None
    signals.end_if_asked()  # during the last step
    _draw(run, name, config.seed)
    return [row for row in run.metrics() if repr(row) not in before]  # also of steps that were trained again


def _draw(run: RunFolder, name: str, seed: int) -> None:
    """Training curves of the run as a file in its folder; none where training ended with the first step, and on a
    machine that trains alone, without the packages of tables and charts."""
    try:
        import vl_convert  # noqa: F401 it draws

        from tepo.reporting.charts.curves import run_curves
        from tepo.reporting.charts.style import svg
    except ModuleNotFoundError:
        return
    if rows := run.metrics():
        chart = run_curves(rows, name, seed, run.path.name, ended=run.ending() is not None)
        write_atomic(run.figures / "training.svg", svg(chart))
