"""Recorded runs, run anew: do they give the same verdicts?"""

import random
from dataclasses import dataclass, replace
from pathlib import Path

from tepo.reporting.tables.provenance_note import cpu
from tepo.store.early_stop import Ending
from tepo.store.facts import Facts
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import Planned
from tepo.studies.planned_facts import Records
from tepo.studies.study import Study


def drawn(planned: Planned, count: int, seed: int) -> tuple[list[tuple[Study, Unit]], Facts]:
    """Some of the recorded runs of a plan, drawn at random whatever its store holds, and what is recorded of them;
    fewer where fewer are recorded."""
    kept = Records.found()
    kept.read(unit.id for _, units in planned for unit in units)
    held = [(study, unit) for study, units in planned for unit in units if kept.holds(unit)]
    recorded = {unit.id: (study, replace(unit, recorded=True)) for study, unit in held}
    some = random.Random(seed).sample(sorted(recorded), min(count, len(recorded)))
    chosen = [recorded[id] for id in some]
    return chosen, kept.facts([(study, [unit]) for study, unit in chosen])


def anew(unit: Unit, store: Path) -> Unit:
    """The run of a recorded unit, to be run in another store."""
    return replace(unit, recorded=False, folder=store / unit.id, config=replace(unit.config, store=str(store)))


@dataclass(frozen=True)
class Agreement:
    """differ: of `problems`, those whose number of right answers is another one than the record says."""

    problems: int
    differ: int
    endings: tuple[Ending | None, Ending | None]  # recorded, and anew

    def __bool__(self) -> bool:
        return not self.differ and self.endings[0] == self.endings[1]


def agreement(unit: Unit, recorded: Facts, again: Facts) -> Agreement:
    """A record beside the same run, run anew."""
    pairs = [(recorded.right(unit.id, name), again.right(unit.id, name)) for name in unit.benchmarks]
    problems = sum(len(old.problems) for old, _ in pairs if old)
    same = sum(a == b for old, new in pairs if old and new for a, b in zip(old.right, new.right, strict=True))
    return Agreement(problems, problems - same, (recorded.of(unit.id).ending, again.of(unit.id).ending))


def machines(facts: Facts) -> list[str]:
    """The kinds of CPU and versions of torch that made them, in words."""
    said = [f"{cpu(session)}, torch {session.get('torch')}" for made in facts.runs["made"] for session in made]
    return list(dict.fromkeys(said))
