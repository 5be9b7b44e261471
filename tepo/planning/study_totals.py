"""Disk space of the runs of a study, and their GPU hours on cards that each train one run, under the assumptions of
`tepo.planning.gpus`."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tepo.planning.fit import fit, needs_reference, takes
from tepo.planning.gpus import Machine
from tepo.policy.model.shapes import shape_of
from tepo.studies.plan import Unit, unique
from tepo.training.resources.run_disk import run_disk


@dataclass(frozen=True, slots=True)
class CardHours:
    """Hours of the single runs of a study on one kind of card, in the order in which they start."""

    machine: Machine
    runs: tuple[float, ...]

    def clock(self, cards: int) -> float:
        """Hours by the clock: a card that is free takes the next run."""
        free = [0.0] * cards
        for hours in self.runs:
            heapq.heapreplace(free, free[0] + hours)
        return max(free)

    @property
    def dollars(self) -> float:
        return sum(self.runs) * self.machine.card.price


def card_hours(units: Sequence[Unit], machine: Machine) -> CardHours | None:
    """Hours of training and measuring every unit; None where one does not fit on the card. Units with the same key
    (`takes`), as most rows of a study have, are looked at once."""
    found: dict[tuple[object, ...], float] = {}
    runs = []
    for unit in units:
        config, trained = unit.config, unit.row.objective is not None
        reference = trained and needs_reference(config)
        key = takes(config), *config.data.benchmarks, trained, reference
        if key not in found:
            fitted = fit(config, machine, reference=reference)
            if fitted.problem:
                return None
            from tepo.planning.step_time import benchmark_time  # imports torch

            measuring = benchmark_time(fitted.config, shape_of(config.model.path), machine, fitted.memory)
            found[key] = (trained * config.train.steps * fitted.time.total + measuring) / 3600
        runs.append(found[key])
    return CardHours(machine, tuple(runs))


@dataclass(frozen=True, slots=True)
class StudyDisk:
    """Bytes of all runs of a plan. kept: when all have finished. one: at most, when they are trained one after another.
    all: at most, when all are trained at once."""

    kept: float
    one: float
    all: float


def study_disk(units: Iterable[Unit]) -> StudyDisk:
    """Disk space of the distinct runs that train."""
    runs = [run_disk(unit.config) for unit in unique(units) if unit.row.objective is not None]
    kept = sum(run.weights for run in runs)
    one = max((run.peak - run.weights for run in runs), default=0.0)
    return StudyDisk(kept, kept + one, sum(run.peak for run in runs))
