"""Power of the comparisons of studies, estimated from the rows that a store holds under several seeds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tepo.analysis.tables import read_samples
from tepo.common.text import setting_text
from tepo.evaluation.statistics.comparison import pair_rows
from tepo.evaluation.statistics.intervals import LEVEL
from tepo.evaluation.statistics.power import Spread, pooled, spread_of
from tepo.store.facts import Facts
from tepo.studies.plan import Unit, family_of, row_key
from tepo.studies.plan_studies import Planned


@dataclass(frozen=True)
class MeasuredDifference:
    """A row against its baseline under `seeds` seeds, and the variances of their difference."""

    label: str
    baseline: str
    delta: float
    seeds: int
    spread: Spread


@dataclass(frozen=True)
class Power:
    """measured: the comparisons that the variances are from. family: how many comparisons Holm's correction is over,
    measured or not; of several studies, in the largest. seeds: how many are planned."""

    measured: list[MeasuredDifference]
    family: int
    seeds: int

    @property
    def level(self) -> float:
        """Level of Holm's first step. Later steps are easier to pass, so the power is at least what is said."""
        return (1 - LEVEL) / self.family

    @property
    def spread(self) -> Spread:
        """The mean variances, of the comparisons on the benchmarks of the first."""
        first = self.measured[0].spread
        return pooled([one.spread for one in self.measured if np.array_equal(one.spread.problems, first.problems)])


def study_power(planned: Planned, facts: Facts) -> Power | None:
    """Power of the comparisons of these studies. None without a baseline, or where no row and its baseline are measured
    under two seeds that both have."""
    measured: dict[tuple[tuple[str, ...], ...], MeasuredDifference] = {}
    for baseline, others in _groups(planned):
        contrasts = {row_key(row[0]): tuple(sorted((_ids(row), _ids(baseline)))) for row in others}
        for one in _measured(baseline, [row for row in others if row[0].row.objective is not None], facts):
            measured.setdefault(contrasts[one.label], one)
    seeds = {len(row) for _, others in _groups(planned) for row in others if row[0].row.objective is not None}
    return Power(list(measured.values()), _largest_family(planned), max(seeds)) if measured else None


def _largest_family(planned: Planned) -> int:
    """Comparisons of the study that declares most of them; registered claims are one family together."""
    own = [family_of(study, units) for study, units in planned if not study.registered]
    return max(*own, sum(study.registered for study, _ in planned), 0)


def _groups(planned: Planned) -> Iterator[tuple[list[Unit], list[list[Unit]]]]:
    """The units of each baseline, and of each row that is compared with it: of its model, at its setting."""
    for study, units in planned:
        groups: dict[tuple[str, str], dict[str, list[Unit]]] = {}
        for unit in units:
            if not unit.tuning:
                rows = groups.setdefault((unit.model, setting_text(unit.row.setting.point)), {})
                rows.setdefault(unit.row.label, []).append(unit)
        for rows in groups.values():
            if study.baseline in rows:
                yield rows[study.baseline], [row for label, row in rows.items() if label != study.baseline]


def _ids(row: Sequence[Unit]) -> tuple[str, ...]:
    return tuple(f"{unit.id}/{name}" for unit in row for name in sorted(unit.config.data.benchmarks))


def _measured(baseline: Sequence[Unit], others: Sequence[Sequence[Unit]], facts: Facts) -> list[MeasuredDifference]:
    rows = [
        [unit for unit in row if all(facts.has(unit.id, name) for name in unit.benchmarks)]
        for row in (baseline, *others)
    ]
    several = [row for row in rows if len(row) > 1]
    if len(rows[0]) < 2 or len(several) < 2:
        return []
    found = []
    for pair in pair_rows(read_samples([unit for row in several for unit in row], facts), row_key(baseline[0])):
        spread = spread_of(pair.cells, pair.weights) if pair.cells else None
        if pair.cells and spread:
            means = np.array([pair.cells[name].mean() for name in sorted(pair.cells)])
            delta = float(spread.weights @ means)
            found.append(MeasuredDifference(pair.row, row_key(baseline[0]), delta, len(pair.seeds), spread))
    return found
