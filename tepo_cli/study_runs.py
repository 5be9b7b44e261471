"""What the study commands share: the plan as a table, live progress of the slots, the rendered tables."""

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tepo.errors import RunFailed, UserError
from tepo.studies.dispatch import Failure, State, run_local, unfinished
from tepo.studies.plan import Unit, unique
from tepo.studies.plan_all import Planned
from tepo.studies.spent import spent
from tepo.studies.store import other_versions
from tepo.studies.study import Study
from tepo.words import counted
from tepo_cli.options import Slots
from tepo_cli.screen import console, say, screen_width, show, tell, whole

_PLACES = ("--jobs", "-j", "--store", "--out", "--results")
_EVALUATION_WEIGHT = 1.0  # a benchmark of 800 samples costs about as much as one training step (docs/laptop.md)


def show_plan(units: Sequence[Unit], brief: bool = False) -> None:
    """One line a unit: what would be trained and measured."""
    if brief:
        say(f"{counted(len(unique(units)), 'run')}, {len(unfinished(unique(units)))} to do")
        return
    for model in dict.fromkeys(unit.config.model.name for unit in units):
        table = Table("row", *map(whole, ("seed", "run", "train", "measure")), title=f"plan: model {model}")
        for unit in (unit for unit in units if unit.config.model.name == model):
            train = (
                "–"
                if unit.row.objective is None
                else ("done" if unit.trained() else counted(unit.config.train.steps, "step"))
            )
            missing = unit.missing_benchmarks()
            measure = counted(len(missing), "benchmark") if missing else "done"
            table.add_row(unit.label, str(unit.seed), unit.id, train, measure)
        show(table, stderr=True)
    say(f"{counted(len(unique(units)), 'run')}, {len(unfinished(unique(units)))} to do")


def show_price(units: Sequence[Unit], scale: str, store: Path) -> None:
    """CPU time, tokens and disk of what is to do, and the measurements behind them."""
    from tepo.studies.price import costs, price, probe

    todo = unfinished(unique(units))
    if not todo:
        tell("nothing to do")
        return
    names = {unit.config.data.name for unit in todo}
    known = [cost for cost in costs(store) if cost.data in names]  # runs on other data cost something else
    new = sorted(names - {cost.data for cost in known})
    if scale != "laptop" and new:  # a probe would load the model
        tell(f"nothing on data={new[0]} was measured in the store: no price from measurements")
        return
    basis = [f"medians over {counted(len(known), 'measured run')} in {store}"] if known else []
    for name in new:
        tell(f"no measured run on data={name} in the store: probing two steps of one row")
        alike = [unit for unit in todo if unit.config.data.name == name]
        known.append(probe(next((unit for unit in alike if unit.row.objective), alike[0])))
        basis.append("a probe of two steps")
    found = price(todo, known, " and ".join(basis))
    tell(
        f"price: {found.cpu_s / 3600:.2f} CPU hours "
        f"({found.cpu_s:.0f} s; about {found.cpu_s / 2 / 60:.0f} minutes on two idle cores), "
        f"{found.tokens / 1e6:.1f}M sampled tokens, {found.disk_bytes / 2**20:.0f} MiB of disk; from {found.basis}"
    )


def run_units(units: Sequence[Unit], slots: Slots) -> None:
    """Run what is not done, with a bar a unit and one for the whole.

    Raises RunFailed when any failed; the others are kept.
    """
    todo = unfinished(unique(units))
    if not todo:
        say(f"{counted(len(unique(units)), 'run')}: nothing to do, all is in the store")
        return
    check_rows(todo)
    show_other_versions(todo[0].folder.parent)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=2) as progress:
        whole = progress.add_task(counted(len(todo), "run"), total=sum(_work(unit) for unit in todo))
        bars = {
            unit.id: progress.add_task(f"  {unit.label} seed {unit.seed}", total=_work(unit), start=False)
            for unit in todo
        }

        def watch(states: dict[str, State]) -> None:
            for name, state in states.items():
                if state.running:
                    progress.start_task(bars[name])
                progress.update(
                    bars[name], completed=state.steps + _EVALUATION_WEIGHT * state.benchmarks, visible=state.running
                )
            progress.update(
                whole, completed=sum(state.steps + _EVALUATION_WEIGHT * state.benchmarks for state in states.values())
            )

        started = time.monotonic()
        failures = _dispatch(todo, slots, watch)
    say(f"{spent(todo)}; {time.monotonic() - started:.0f} s by the clock")
    if failures:
        raise RunFailed(
            _report(failures),
            fix="see log.txt in each run's folder; the same command tries them again and keeps the rest",
        )


def check_rows(todo: Sequence[Unit]) -> None:
    """Raises UserError naming the row whose objective or tasks have a setting that does not exist: one message, not one
    failed run after another."""
    from tepo.training.checks import check_settings

    for label, config in {unit.label: unit.config for unit in todo if unit.row.objective is not None}.items():
        try:
            check_settings(config)
        except UserError as error:
            raise UserError(
                error.what, where=f"row {label!r}" + (f", {error.where}" if error.where else ""), fix=error.fix
            ) from None


def show_other_versions(store: Path) -> None:
    """Say so when the store holds runs that this version does not use."""
    found = other_versions(store)
    if found:
        say(
            f"{store} holds {counted(len(found), 'run')} of another version "
            f"({', '.join(found[:4])}{' …' if len(found) > 4 else ''}): kept, and not used here"
        )


def _dispatch(todo: Sequence[Unit], slots: Slots, watch: Callable[[dict[str, State]], None]) -> list[Failure]:
    if slots.launcher == "local":
        return run_local(todo, slots.jobs, watch, slots.gpus)
    from tepo.studies.slurm import SlurmOptions, run_slurm

    return run_slurm(
        todo,
        SlurmOptions(slots.partition, slots.gpus, slots.nodes, minutes=slots.minutes),
        todo[0].folder.parent,
        watch,
    )


def _work(unit: Unit) -> float:
    steps = 0 if unit.row.objective is None else unit.config.train.steps
    return steps + _EVALUATION_WEIGHT * len(unit.config.data.benchmarks)


def _report(failures: Sequence[Failure]) -> str:
    return "\n".join(
        [
            f"{len(failures)} of the runs failed:",
            *(
                f"  {failure.unit.label} seed {failure.unit.seed} ({failure.unit.folder}): {failure.message}"
                for failure in failures
            ),
        ]
    )


def check_outputs(out: Path, results_path: Path | None) -> None:
    """Raises UserError where a folder lies in the place of a file: before the work, not after it."""
    for option, path in (("--out", out), ("--results", results_path)):
        if path is not None and path.is_dir():
            raise UserError(
                "a folder, not a file",
                where=f"{option} {path}",
                fix=f"{option} {path / 'report'}{'.html' if option == '--out' else '.md'}",
            )


def write_outputs(planned: Planned, scale: str, out: Path, results_path: Path | None) -> None:
    """The page, and the Markdown document if asked for."""
    from tepo.files import write_atomic
    from tepo.studies.assemble import page, render_all, results

    studies, runs = render_all(planned, scale)
    write_atomic(out, page(studies, runs, scale), "--out FILE")
    say(f"page: {out}")
    if results_path is not None:
        write_atomic(results_path, results(studies, planned, scale, _command(sys.argv[1:])), "--results FILE")
        say(f"results: {results_path}")


def _command(words: Sequence[str]) -> str:
    """The command behind a document, without where things lie and how many ran at once."""
    kept, skip = ["tepo"], False
    for word in words:
        if not skip and word.split("=")[0] not in _PLACES:
            kept.append(shlex.quote(word))
        skip = word in _PLACES
    return " ".join(kept)


def show_tables(study: Study, scale: str, units: Sequence[Unit], format: str) -> None:
    """Print the study's table, one block a model, and say where the runs lie."""
    from tepo.reporting.render import render
    from tepo.studies.study_table import study_table

    if unfinished(units):
        show_other_versions(units[0].folder.parent)
    table = study_table(study, scale, units)
    rendered = render(table, format)
    if isinstance(rendered, str):
        print(rendered.rstrip("\n"))
    else:
        Console(width=screen_width(), markup=False).print(rendered)
    there = sorted({str(unit.folder) for unit in units if unit.folder.is_dir()})
    if there:
        say(f"runs: {', '.join(there[:8])}{' …' if len(there) > 8 else ''}")
