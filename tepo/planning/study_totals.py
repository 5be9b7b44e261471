"""Disk space of the runs of a study, and their hours on a machine."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tepo.planning.fit import fit, takes
from tepo.planning.gpus import Machine
from tepo.studies.plan import Unit, unique
from tepo.training.resources.disk import run_disk
from tepo.training.run import Run


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
