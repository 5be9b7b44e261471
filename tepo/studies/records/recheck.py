"""Recorded runs, run anew: do they give the same verdicts?"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tepo.reporting.tables.provenance_note import cpu
from tepo.store.early_stop import Ending
from tepo.studies.plan import Unit, unique
from tepo.studies.plan_studies import Planned
from tepo.studies.records.read import RecordsById


def drawn(planned: Planned, count: int, seed: int) -> list[Unit]:
    """Some of the recorded runs of a plan, drawn at random whatever its store holds; fewer where fewer are recorded."""
    kept = RecordsById.read()
    recorded = [read for study, units in planned for unit in units if (read := kept.fill(study, unit)).record]
    ordered = sorted(unique(recorded), key=lambda unit: unit.id)
    return random.Random(seed).sample(ordered, min(count, len(ordered)))


def anew(unit: Unit, store: Path) -> Unit:
    """The run of a recorded unit, to be run in another store."""
    return replace(unit, record=None, folder=store / unit.id, config=replace(unit.config, store=str(store)))


@dataclass(frozen=True)
class Agreement:
    """differ: of `problems`, those whose number of right answers is another one than the record says."""

    problems: int
    differ: int
    endings: tuple[Ending | None, Ending | None]  # recorded, and anew

    def __bool__(self) -> bool:
        return not self.differ and self.endings[0] == self.endings[1]


def agreement(recorded: Unit, again: Unit) -> Agreement:
    """A record beside the same run, run anew."""
    pairs = [(recorded.run.right_answers(name), again.run.right_answers(name)) for name in recorded.benchmarks]
    problems = sum(len(old.problems) for old, _ in pairs if old)
    same = sum(a == b for old, new in pairs if old and new for a, b in zip(old.right, new.right, strict=True))
    return Agreement(problems, problems - same, (recorded.run.ending(), again.run.ending()))


def machines(units: Sequence[Unit]) -> list[str]:
    """The kinds of CPU and versions of torch that made them, in words."""
    said = [
        f"{cpu(session)}, torch {session.get('torch')}"
        for unit in units
        for session in unit.run.sessions(unit.benchmarks)
    ]
    return list(dict.fromkeys(said))
