"""Running the units of a plan, with their progress on the screen."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tepo.common.errors import RunFailed, UserError, unknown_name
from tepo.common.text import counted
from tepo.launch.local import UnitProgress, run_local, same_twice, unfinished
from tepo.launch.sbatch import SlurmOptions, check_slurm, nodes_here
from tepo.launch.slurm import requests, run_slurm
from tepo.reporting.progress import console, say
from tepo.store.cost import Cost
from tepo.studies.plan import Unit, scale_of, unique
from tepo.studies.plan_studies import Planned
from tepo.studies.tuning_result import tuned_rows

LAUNCHERS = ("local", "slurm")


@dataclass(frozen=True)
class Slots:
    """Places for runs: `jobs` local slots with `gpus` GPUs each (None: what the runs can use, and slots for all that
    are visible), or jobs of Slurm."""

    launcher: str = "local"
    jobs: int | None = None
    gpus: int | None = None
    slurm: SlurmOptions | None = None

    def __post_init__(self) -> None:
        if self.launcher not in LAUNCHERS:
            raise unknown_name("launcher", self.launcher, LAUNCHERS, where="--launcher")
        if self.jobs is not None and self.jobs < 1:
            raise UserError("at least one run at a time", where=f"jobs={self.jobs}", fix="jobs=1, or leave it out")


def run_planned(plan: Callable[[], Planned], slots: Slots, quiet: bool = False) -> Planned:
    """Run what a plan names, and where that chooses settings what is known after it, until nothing is added. Returns
    the plan of all of it. Raises RunFailed when any failed; the others are kept."""
    planned, printed_lines = plan(), set[str]()
    while True:
        run_units([unit for _, units in planned for unit in units], slots, quiet)
        if not any(study.tune_at(scale_of(units)) for study, units in planned):
            return planned
        after = plan()
        lines = [line for line in _choices(after) if line not in printed_lines]
        printed_lines.update(lines)
        for line in () if quiet else lines:
            say(line)
        if sum(len(units) for _, units in after) == sum(len(units) for _, units in planned):
            return after
        planned = after


def _choices(planned: Planned) -> Iterator[str]:
    """A line for each row whose shortlist or setting is known."""
    for study, units in planned:
        if not (tune := study.tune_at(scale_of(units))):
            continue
        for row in tuned_rows(units, tune):
            if tune.shortlist and row.shortlist:
                yield f"on the shortlist of {row.first.row_label}: {'; '.join(map(row.shown, row.shortlist))}"
            if row.chosen is not None:
                best = f"{100 * row.scores[row.chosen]:.1f}% of the validation problems"
                of = f", draw {row.draws.index(row.chosen) + 1} of {tune.draws}" if row.chosen in row.draws else ""
                yield f"chosen for {row.first.row_label}: {row.shown(row.chosen)} ({best}{of})"


def run_units(units: Sequence[Unit], slots: Slots, quiet: bool = False) -> None:
    """Run what is not done, with a bar a unit and one for all, and what it cost; quiet: without a word. Raises
    RunFailed when any failed; the others are kept."""
    todo = unfinished(unique(units))

    def note(text: str) -> None:
        if text and not quiet:
            say(text)

    if not todo:
        note(f"{counted(len(unique(units)), 'run')}: nothing to do, all is in the store")
        return
    from torch.cuda import device_count

    from tepo.launch.unit_checks import check_study, slots_of

    slurm, jobs, gpus = None, slots.jobs or 1, slots.gpus or 0
    if slots.slurm is not None:
        check_slurm()
        slurm = requests(todo, slots.slurm, nodes_here())
    elif slots.gpus is None:
        jobs, gpus, sentence = slots_of(todo, slots.jobs, device_count())
        note(sentence)
    check_study(todo, jobs, gpus, slurm)
    for line in other_bases(todo):
        note(line)
    started = time.monotonic()
    with _bars(todo, quiet) as watch:
        if slurm is None:
            failures = run_local(todo, jobs, gpus, watch)
        else:
            failures = run_slurm(todo, slurm, todo[0].store, watch)
    for unit in todo:
        if ending := unit.folder.ending():
            note(f"{unit.title} ended with {ending}: {ending.why}")
    costs = {unit.id: unit.folder.costs() for unit in todo}
    note("; ".join(filter(None, (spent(costs), f"{time.monotonic() - started:.0f} s by the clock"))))
    if failures:
        lines = [f"{len(failures)} of the runs failed:"]
        for failure in failures:
            unit = failure.unit
            lines.append(f"  {unit.title} ({unit.id}): {failure.message}")
        failed = {failure.unit.id for failure in failures}
        unstarted_units = [unit for unit in todo if unit.id not in failed and not unit.done()]
        if unstarted_units and same_twice(failures):
            lines.append(f"two failed alike, so {counted(len(unstarted_units), 'run')} did not start")
        where = f"see log.txt in each run's folder in {todo[0].store}"
        fix = f"{where}; the same command tries them again and keeps the rest"
        raise RunFailed("\n".join(lines), fix=fix)


def other_bases(units: Sequence[Unit]) -> list[str]:
    """A line for each base on record that another one of its name stands in for on this machine."""
    reason = "is another base on this machine than the one on record, so no table shows these runs beside recorded ones"
    return [f"{path} {reason}" for path in dict.fromkeys(path for unit in units for path in unit.other_bases)]


def spent(by_run: Mapping[str, Sequence[Cost]]) -> str:
    """One sentence: CPU seconds in all, and the shares of sampling, log-probs and updates, of the benchmarks, and of
    everything else (start-up, grading, checkpoints, token dumps). Empty when nothing was recorded. by_run: the costs
    of its processes."""
    costs = [cost for processes in by_run.values() for cost in processes]
    total = sum(cost.cpu_s for cost in costs)
    if not total:
        return ""
    core, benchmarks = sum(cost.core_s for cost in costs), sum(cost.measuring_s for cost in costs)
    return (
        f"{total:,.0f} CPU seconds in {counted(len(by_run), 'run')}: "
        f"{core / total:.1%} sampling, log-probs and updates, "
        f"{benchmarks / total:.1%} benchmarks (sampling and grading), "
        f"{1 - (core + benchmarks) / total:.1%} everything else"
    )


@contextmanager
def _bars(todo: Sequence[Unit], quiet: bool) -> Iterator[Callable[[dict[str, UnitProgress]], None]]:
    """A bar a unit while it runs and one for all, or in a file a line a finished unit; call it with the state of
    each."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=2, disable=quiet) as progress:
        # a benchmark of 800 samples costs about as much as one training step (docs/scales.md)
        work = {unit.id: unit.steps + len(unit.benchmarks) for unit in todo}
        total = progress.add_task(counted(len(todo), "run"), total=sum(work.values()))
        bars = {unit.id: progress.add_task(f"  {unit.title}", total=work[unit.id], start=False) for unit in todo}
        named, ended = {unit.id: unit for unit in todo}, set[str]()
        in_file = not (quiet or console.is_terminal or console.is_jupyter)  # where no bar can be drawn

        def watch(states: dict[str, UnitProgress]) -> None:
            for name, state in states.items():
                if in_file and name not in ended and state.done and not state.running and named[name].done():
                    ended.add(name)
                    unit, count = named[name], f"{len(ended)} of {counted(len(todo), 'run')}"
                    say(f"{count}: {unit.title} {unit.outcome}")
                if state.running:
                    progress.start_task(bars[name])
                progress.update(bars[name], completed=state.steps + state.benchmarks, visible=state.running)
            progress.update(total, completed=sum(state.steps + state.benchmarks for state in states.values()))

        yield watch
