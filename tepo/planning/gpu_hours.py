"""GPU hours of a study on cards that each train one run, under the assumptions of `tepo.planning.gpus`."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from tepo.planning.fit import fit, needs_reference, takes
from tepo.planning.gpus import Machine
from tepo.policy.model.shapes import shape_of
from tepo.studies.plan import Unit


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
