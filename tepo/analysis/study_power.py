"""Power of the comparisons of studies, estimated from the rows that a store holds under several seeds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tepo.analysis.tables import read_samples
from tepo.common.grouping import grouped
from tepo.common.text import setting_text
from tepo.evaluation.statistics.intervals import LEVEL
from tepo.evaluation.statistics.power import Spread, found_from, pooled, smallest, spread_of
from tepo.evaluation.statistics.samples import pair_rows
from tepo.evaluation.statistics.verdict import FEWEST_SEEDS
from tepo.store.facts import Facts
from tepo.studies.plan import Unit, family_of, reported, row_key
from tepo.studies.plan_studies import Planned


def level(family: int) -> float:
    """Level of Holm's first step. Later steps are easier to pass, so the power is at least what is said."""
    return (1 - LEVEL) / family


@dataclass(frozen=True)
class MeasuredDifference:
    """A row against its baseline."""

    label: str
    baseline: str
    delta: float
    seeds: int
    spread: Spread  # the variances of their difference
    family: int  # of its own study or batch, see `Power`

    @property
    def cautious(self) -> Spread:
        return self.spread.cautious(self.seeds - 1)


@dataclass(frozen=True)
class Power:
    """Power of comparisons."""

    measured: list[MeasuredDifference]  # the comparisons that the variances are from
    family: int  # comparisons that Holm's correction is over, measured or not; of several families the largest
    seeds: int  # that are planned

    @property
    def spread(self) -> Spread:
        """The mean variances, of the comparisons on the benchmarks of the first, that between seeds with caution.
        Differences to one baseline share its luck, so their variances are a quarter correlated: each beyond the first
        tells less."""
        first = self.measured[0].spread
        alike = [
            difference for difference in self.measured if np.array_equal(difference.spread.problems, first.problems)
        ]
        freedom = sum(difference.seeds - 1 for difference in alike) / (1 + (len(alike) - 1) / 4)
        return pooled([difference.spread for difference in alike]).cautious(freedom)


def study_power(planned: Planned, facts: Facts) -> Power | None:
    """Power of the comparisons of these studies. None without a baseline, or where no row and its baseline are measured
    under two seeds that both have."""
    measured: dict[tuple[tuple[str, ...], ...], MeasuredDifference] = {}
    seeds, batches = 0, Counter(study.batch for study, _ in planned)
    families = [batches[study.batch] if study.batch else family_of(study, units) for study, units in planned]
    for family, (study, units) in zip(families, planned, strict=True):
        parts = grouped(((unit.model, setting_text(unit.row.setting.point)), unit) for unit in reported(units))
        for part in parts.values():  # of one model at one setting
            rows = grouped((unit.row.label, unit) for unit in part)
            if study.baseline is None or study.baseline not in rows:
                continue
            baseline = rows.pop(study.baseline)
            trained = {row_key(row[0]): row for row in rows.values() if row[0].trains}
            seeds = max([seeds, *map(len, trained.values())])
            for difference in _measured(baseline, list(trained.values()), family, facts):
                measured.setdefault(tuple(sorted((_ids(trained[difference.label]), _ids(baseline)))), difference)
    return Power(list(measured.values()), max(families), seeds) if measured else None


def found_in_words(power: Power | None) -> str:
    """The smallest difference that the planned seeds find with 80%, in points; a dash where nothing says it."""
    if power is None or power.seeds < FEWEST_SEEDS:
        return "–"
    points = 100 * smallest(found_from(power.spread, power.seeds, level(power.family)))
    return f"{points:.1f}" if points <= 100 else "none"


def _ids(row: Sequence[Unit]) -> tuple[str, ...]:
    return tuple(f"{unit.id}/{name}" for unit in row for name in sorted(unit.config.data.benchmarks))


def _measured(
    baseline: Sequence[Unit], others: Sequence[Sequence[Unit]], family: int, facts: Facts
) -> list[MeasuredDifference]:
    rows = [
        [unit for unit in row if all(facts.has(unit.id, name) for name in unit.benchmarks)]
        for row in (baseline, *others)
    ]
    several = [row for row in rows if len(row) > 1]
    if len(rows[0]) < 2 or len(several) < 2:
        return []
    differences, base = [], row_key(baseline[0])
    for pair in pair_rows(read_samples([unit for row in several for unit in row], facts), base):
        if pair.cells and (spread := spread_of(pair.cells, pair.weights)):
            delta = float(spread.weights @ np.array([pair.cells[name].mean() for name in sorted(pair.cells)]))
            differences.append(MeasuredDifference(pair.row, base, delta, len(pair.seeds), spread, family))
    return differences
