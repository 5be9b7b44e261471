"""Fit of a run on a machine, by the layout that is chosen there, and what would make it fit: said before anything is
started. Hours and disk space of the runs of a study."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tepo.config.compose import compose, to_dict
from tepo.config.run_config import RunConfig
from tepo.planning.gpus import Machine
from tepo.studies.plan import Unit, unique
from tepo.studies.study import SCALES, load_study
from tepo.training.resources.disk import run_disk
from tepo.training.resources.estimate import START, StepTime, measuring_time, step_time
from tepo.training.resources.gpu_cards import Card
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import TAKEN, Memory, memory
from tepo.training.resources.remedies import changes, obstacle
from tepo.training.run import Run

_DEVICE = ("model", "sampler", "engine", "train")  # the sections that memory and time depend on
_FREE = ("learning_rate", "warmup_steps", "weight_decay", "adam_beta2", "grad_clip")  # but not on these of `train`
_SECTIONS = {"sampling": "gen", "updating": "update_actor"}  # a phase of the plan, a section of a step
_TABLES = ("table1", "table2")  # with all models of a scale


@dataclass(frozen=True)
class Fit:
    """A run on a machine."""

    asked: Run
    run: Run  # with what was asked leaves open chosen for the machine
    machine: Machine
    memory: Memory
    problem: str = ""  # why it does not fit
    why: Mapping[str, str] = field(default_factory=dict)  # by key what was chosen and why

    @cached_property
    def changes(self) -> tuple[str, ...] | None:
        """Overrides under which it would fit; None when none are known."""
        return changes(self.asked, self.machine.of) if self.problem else ()

    @cached_property
    def time(self) -> StepTime:
        return step_time(self.run, self.machine.of(self.run), self.memory)

    def hours(self, *, trained: bool) -> float:
        """Hours of a run or, not trained, of its base: the sampler's start, all steps, the last checkpoint, for which
        the run waits, and the benchmarks."""
        seconds = measuring_time(self.run, self.machine.of(self.run))
        if trained:
            start = 0.0 if self.run.shares_weights else START
            seconds += start + self.run.config.train.steps * self.time.total + self.time.write
        return seconds / 3600

    def cost(self, steps: int) -> float:
        """Dollars of so many steps."""
        return self.time.total * steps / 3600 * self.machine.ranks * self.machine.card.price


def fit(run: Run, machine: Machine) -> Fit:
    """Check a run on a machine. Raises UserError for a model of unknown shape."""
    gpus = machine.of(run)
    filled, why = fill(run, gpus)
    return Fit(run, filled, machine, memory(filled, gpus), obstacle(filled, gpus), why)


def takes(config: RunConfig) -> str:
    """Key of all settings that memory and time depend on."""
    parts = {section: to_dict(config)[section] for section in _DEVICE}
    return str(parts | {"train": {key: value for key, value in parts["train"].items() if key not in _FREE}})


def measured_peaks(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """GiB by phase, the most of all steps. Empty for a run that no GPU has trained."""
    keys = {phase: f"{TAKEN}{section}" for phase, section in _SECTIONS.items()}
    complete_rows = [row for row in rows if all(key in row for key in keys.values())]
    return {phase: max(row[key] for row in complete_rows) for phase, key in keys.items()} if complete_rows else {}


def scales_here(gpus: Sequence[float], host: float) -> Iterator[tuple[str, str]]:
    """Each shipped scale, and in words what of it fits. gpus: bytes of each GPU; host: bytes of main memory."""
    for scale in SCALES:
        sentences = []
        for model in dict.fromkeys(model for table in _TABLES for model in load_study(table).scale(scale).models):
            run = Run(compose([f"scale={scale}", f"model={model}"]))
            if run.config.model.dtype == "float32":
                sentences.append(f"{model} runs on the CPU")
            elif not gpus:
                sentences.append(f"{model} needs a GPU")
            else:  # only memory counts here: operations, bandwidth and price say nothing
                ranks = len(gpus) if run.engine.several_ranks else 1
                gpu_fit = fit(run, Machine(Card("GPU", min(gpus), 1.0, 1.0), 1, ranks, host))
                remedy = f"fits with {' '.join(gpu_fit.changes)}" if gpu_fit.changes is not None else "does not fit"
                sentences.append(f"{model} {remedy if gpu_fit.problem else 'fits'}")
        yield scale, "; ".join(sentences)


@dataclass(frozen=True, slots=True)
class StudyHours:
    """Hours of the single runs of a study on one kind of machine, in the order in which they start. unfit: models that
    do not fit; with any the runs are not all there."""

    machine: Machine
    runs: tuple[float, ...]
    unfit: tuple[str, ...] = ()

    def clock(self, machines: int) -> float:
        """Hours by the clock: a machine that is free takes the next run."""
        free = [0.0] * machines
        for hours in self.runs:
            heapq.heapreplace(free, free[0] + hours)
        return max(free)

    @property
    def dollars(self) -> float:
        return sum(self.runs) * self.machine.ranks * self.machine.card.price


def study_hours(units: Sequence[Unit], machine: Machine) -> StudyHours:
    """Hours of training and measuring every unit. Units that take the same, as most rows of a study do, are looked at
    once."""
    hours_by_key: dict[tuple[object, ...], float | None] = {}
    runs, unfit = [], []
    for unit in units:
        config, trained = unit.config, unit.trains
        if trained:
            unit.as_typed()  # its objective is loaded
        run = Run(config)
        key = takes(config), *config.data.benchmarks, trained, trained and run.needs.initial_policy
        if key not in hours_by_key:
            machine_fit = fit(run, machine)
            hours_by_key[key] = None if machine_fit.problem else machine_fit.hours(trained=trained)
        hours = hours_by_key[key]
        if hours is None:
            unfit.append(config.model.name)
        else:
            runs.append(hours)
    return StudyHours(machine, tuple(runs), tuple(dict.fromkeys(unfit)))


@dataclass(frozen=True, slots=True)
class StudyDisk:
    """Bytes of all runs of a plan. kept: when all have finished. one: at most, when they are trained one after another.
    all: at most, when all are trained at once."""

    kept: float
    one: float
    all: float


def study_disk(units: Iterable[Unit]) -> StudyDisk:
    """Disk space of the distinct runs that train."""
    runs = [run_disk(Run(unit.config)) for unit in unique(units) if unit.trains]
    weights = sum(run.weights for run in runs)
    largest_extra = max((run.peak - run.weights for run in runs), default=0.0)
    return StudyDisk(weights, weights + largest_extra, sum(run.peak for run in runs))
