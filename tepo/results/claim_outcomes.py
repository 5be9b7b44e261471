"""Registered claims with what their runs say."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from tepo.evaluation.statistics.comparison import Difference, Verdict, compare, pair_rows
from tepo.evaluation.statistics.entropy_at_equal_reward import entropy_difference
from tepo.evaluation.statistics.equivalence import Decision, decide
from tepo.evaluation.statistics.intervals import LEVEL
from tepo.evaluation.statistics.power import (
    MOST_SEEDS,
    Spread,
    equivalent_from,
    found_from,
    seeds_needed,
    spread_of,
    spread_of_seeds,
)
from tepo.results.registration import registered
from tepo.results.tables import read_samples, row_key
from tepo.studies.claims import Claim, Claims
from tepo.studies.plan import Unit


@dataclass(frozen=True)
class Judged:
    """A claim that can be run. decision and spread: None until all of its runs are measured, as looking at half of them
    and going on would make more false alarms than are promised. registered: the commit since which it reads as it does.
    """

    claim: Claim
    units: Sequence[Unit]
    decision: Decision | None
    spread: Spread | None
    registered: datetime | None
    family: int

    @property
    def difference(self) -> Difference | None:
        return self.decision.difference if self.decision else None

    @property
    def done(self) -> int:
        """Runs that are measured."""
        return sum(unit.done() for unit in self.units)

    @property
    def outcome(self) -> str:
        """Words for the claim; empty until it is judged."""
        return self.claim.outcome(self.decision.verdict) if self.decision else ""

    @property
    def verdict(self) -> str:
        """Words for A against B; where it is undecided, with half the interval and what more seeds would show."""
        if self.decision is None:
            return ""
        verdict = self.decision.verdict
        if verdict is not Verdict.UNDECIDED:
            return str(verdict)
        return f"{verdict}: ±{100 * self.decision.difference.half:.1f}; {self.more_seeds}"

    @property
    def more_seeds(self) -> str:
        """How many seeds find a difference of the margin with 80%, or show equal sides to be equivalent."""
        equal = "equivalent" in self.claim.expect
        shows = f"show equal sides equivalent within {self.claim.margin:g}" if equal else f"find {self.claim.margin:g}"
        count: int | str = "an unknown number of"
        if self.spread is not None:
            margin, level = (self.claim.margin or 0) / 100, (1 - LEVEL) / self.family
            thresholds = equivalent_from if equal else found_from
            count = seeds_needed(self.spread, margin, level, thresholds) or f"more than {MOST_SEEDS}"
        return f"{count} seeds {shows} {self.claim.unit} with 80%"

    @property
    def ran(self) -> str:
        """The first and last day of its runs, and whether they began too early."""
        sessions = [session for unit in self.units for session in unit.run.sessions(unit.benchmarks)]
        days = sorted(datetime.fromisoformat(str(time)) for one in sessions if (time := one.get("started")))
        ran = "" if not days else " to ".join(dict.fromkeys(f"{day:%Y-%m-%d}" for day in (days[0], days[-1])))
        early = self.registered is not None and bool(days) and days[0] < self.registered
        return f"{ran}, begun before it was registered" if early else ran

    @property
    def since(self) -> str:
        """The day it was registered."""
        return f"{self.registered:%Y-%m-%d}" if self.registered else "unknown: not committed here"


def judge(claims: Claims, units: Sequence[Sequence[Unit]]) -> list[Judged]:
    """units: of each testable claim, in order."""
    testable = claims.testable
    results = [_result(claim, part) for claim, part in zip(testable, units, strict=True)]
    margins = [(claim.margin or 0) / 100 for claim in testable]
    decisions = decide([one[0] if one else None for one in results], margins)
    dates = registered(claims.path)
    return [
        Judged(claim, part, decision, result[1] if result else None, dates[claim.name], len(testable))
        for claim, part, decision, result in zip(testable, units, decisions, results, strict=True)
    ]


def _result(claim: Claim, units: Sequence[Unit]) -> tuple[Difference, Spread | None] | None:
    """None until everything is measured."""
    if not all(unit.done() for unit in units):
        return None
    if claim.measure == "entropy":
        return _entropy(units)
    frame, baseline = read_samples(units), row_key(units[0])
    (difference,), (pair,) = compare(frame, baseline), pair_rows(frame, baseline)
    return difference, spread_of(pair.cells, pair.weights) if pair.cells else None


def _entropy(units: Sequence[Unit]) -> tuple[Difference, Spread]:
    """Of the second row against the first, seed by seed."""
    runs: dict[str, dict[int, np.ndarray]] = {}
    for unit in units:
        rows = [[row["critic/score/mean"], row["actor/entropy"]] for row in unit.run.metrics()]
        runs.setdefault(row_key(unit), {})[unit.seed] = np.array(rows, dtype=float)
    (_, base), (name, other) = runs.items()
    difference = entropy_difference(name, [(other[seed], base[seed]) for seed in other])
    return difference, spread_of_seeds(difference.error * difference.seeds**0.5)
