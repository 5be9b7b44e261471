"""What `tepo train`, `tepo base` and `tepo ablate` share: training, measuring, figures. Imported when they run."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from tepo.config.schema import RunConfig
from tepo.studies.measure import measure
from tepo.studies.plan import check_measurable
from tepo.studies.price import Cost, record
from tepo.training.distributed import rank
from tepo.training.loop import train
from tepo.training.run_folder import RunFolder
from tepo.words import counted
from tepo_cli.screen import bar, say, show, whole


def run_training(config: RunConfig, *, evaluate: bool, quiet: bool) -> None:
    """Train, draw the curves, measure if asked, and say where things lie."""
    if evaluate:
        check_measurable(config)  # now, not after an hour of training
    run = RunFolder.of(config)
    before = len(run.metrics())
    with bar(f"{config.objective['name']} seed {config.seed}", config.train.steps, quiet) as advance:
        folder = train(
            config,
            lambda step, row: advance(
                step, f"reward {row['critic/score/mean']:.3f}  grad {row['actor/grad_norm']:.2f}"
            ),
        )
    if rank() > 0:
        return
    draw_curves(folder, config)
    say(f"run {folder.name}: {counted(config.train.steps, 'step')}, {folder}")
    measure_run(folder, config, config.data.benchmarks if evaluate else [], run.metrics()[before:], quiet=quiet)


def measure_run(
    folder: Path, config: RunConfig, benchmarks: Sequence[str], trained: Sequence[dict[str, Any]] | None, *, quiet: bool
) -> None:
    """Measure a run (trained: the metrics of the steps this process added) or a base (None), print the accuracies, and
    add what the process cost to the run's record."""
    started, before = time.process_time(), _measured(folder)
    with bar("benchmarks", len(benchmarks), quiet or not benchmarks) as advance:
        done: list[str] = []

        def report(name: str, rows: int, total: int) -> None:
            if rows == total:
                done.append(name)
            advance(len(done), f"{name} {rows}/{total}")

        results = measure(folder, config, benchmarks, trained=trained is not None, report=report) if benchmarks else []
    if results:
        table = Table(*map(whole, ("benchmark", "accuracy %", "95%")), title=folder.name)
        for result in results:
            ends = "–" if result.interval is None else " – ".join(f"{100 * end:.1f}" for end in result.interval)
            table.add_row(result.benchmark, f"{100 * result.accuracy:.1f}", ends)
        show(table, stderr=True)
    rows, new = trained or [], _measured(folder) - before
    if rows or new:
        spent = [sum(row[name] for row in rows) for name in ("perf/cpu_s", "perf/sampled_tokens", "perf/cpu_core_s")]
        objective = str(config.objective["name"]) if trained is not None else ""
        record(
            folder,
            Cost(
                config.data.name,
                objective,
                len(rows),
                new,
                time.process_time(),
                spent[0],
                time.process_time() - started,
                int(spent[1]),
                spent[2],
            ),
        )


def _measured(folder: Path) -> int:
    return sum(1 for _ in folder.glob("eval/*/result.json"))


def draw_curves(folder: Path, config: RunConfig) -> None:
    """Training curves as PNG and SVG in the run's `figures/`."""
    from tepo.reporting.curves import RunCurves, save, training_figure

    run = RunCurves(config.objective["name"], config.objective["name"], config.seed, RunFolder(folder).metrics())
    save(training_figure([run]), folder / "figures", "training")
