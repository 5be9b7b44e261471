"""What `tepo train`, `tepo base` and `tepo ablate` share: progress on the terminal, measuring, figures. Imported when they run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tepo.config.compose import to_dict
from tepo.config.schema import RunConfig
from tepo.studies.measure import measure
from tepo.training.loop import train
from tepo.training.run_folder import RunFolder

console = Console(stderr=True)


@contextmanager
def bar(title: str, total: int, quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """A progress bar on standard error; the remaining time is that of the recent steps. Call it with (done, note)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, disable=quiet) as progress:
        task = progress.add_task(title, total=total, note="")
        yield lambda done, note: progress.update(task, completed=done, note=note)


def run_training(config: RunConfig, *, evaluate: bool, quiet: bool) -> None:
    """Train, draw the curves, measure if asked, and say where things lie."""
    name = RunFolder.of(config).path.name
    with bar(f"{config.objective['name']} seed {config.seed}", config.train.steps, quiet) as advance:
        folder = train(config, lambda step, row: advance(step, f"reward {row['critic/score/mean']:.3f}  grad {row['actor/grad_norm']:.2f}"))
    draw_curves(folder, config)
    console.print(f"run {name}: {config.train.steps} steps, {folder}")
    if evaluate:
        measure_run(folder, config, trained=True, quiet=quiet)


def measure_run(folder: Path, config: RunConfig, *, trained: bool, quiet: bool) -> None:
    """Evaluate on the benchmarks of the data and print the accuracies."""
    with bar("benchmarks", len(config.data.benchmarks), quiet) as advance:
        done: list[str] = []

        def report(name: str, rows: int, total: int) -> None:
            if rows == total:
                done.append(name)
            advance(len(done), f"{name} {rows}/{total}")

        results = measure(folder, config, config.data.benchmarks, trained=trained, report=report)
    table = Table("benchmark", "accuracy %", "95%", title=f"{folder.name}")
    for result in results:
        low, high = result.interval
        table.add_row(result.benchmark, f"{100 * result.accuracy:.1f}", f"{100 * low:.1f} – {100 * high:.1f}")
    console.print(table)


def draw_curves(folder: Path, config: RunConfig) -> None:
    """Training curves as PNG and SVG in the run's `figures/`."""
    from tepo.reporting.curves import RunCurves, save, training_figure

    run = RunCurves(config.objective["name"], config.objective["name"], config.seed, RunFolder(folder).metrics())
    save(training_figure([run]), folder / "figures", "training")


def describe(config: RunConfig) -> None:
    """The resolved configuration and what a run would do."""
    import yaml

    folder, train_config = RunFolder.of(config), config.train
    print(yaml.safe_dump(_plain(to_dict(config)), sort_keys=False, allow_unicode=True), end="")
    steps = folder.checkpoints()
    print(
        f"# plan: run {folder.path.name} in {folder.path}\n"
        f"# {train_config.steps} steps x {train_config.prompts_per_step} prompts x {train_config.samples_per_prompt} samples; "
        f"{folder.manifest().get('status', 'not started')}{f', {steps[-1]} steps done' if steps else ''}"
    )


def _plain(value: Any) -> Any:
    """Tuples as lists, for YAML."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
