"""Outcomes of registered claims, from their runs, and the dates since which they are registered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tepo.common.provenance import git
from tepo.evaluation.statistics.comparison import Difference, compare, pair_rows
from tepo.evaluation.statistics.comparison_verdict import Verdict
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
from tepo.results.tables import read_samples, row_key
from tepo.studies.claims import Claim, Claims
from tepo.studies.plan import Unit


@dataclass(frozen=True)
class ClaimOutcome:
    """A claim that can be run, with what its runs say. decision and spread: None until all of its runs are measured, as
    looking at half of them and going on would make more false alarms than are promised. registered: date of the commit
    since which it reads as it does. family: number of claims that the verdicts are corrected over."""

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
        """Seeds that would detect a difference of the margin with 80% power, or show equal sides to be equivalent."""
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
        """First and last day of its runs; it says so if they began before the claim was registered."""
        sessions = [session for unit in self.units for session in unit.run.sessions(unit.benchmarks)]
        days = sorted(datetime.fromisoformat(str(time)) for one in sessions if (time := one.get("started")))
        ran = "" if not days else " to ".join(dict.fromkeys(f"{day:%Y-%m-%d}" for day in (days[0], days[-1])))
        early = self.registered is not None and bool(days) and days[0] < self.registered
        return f"{ran}, begun before it was registered" if early else ran

    @property
    def since(self) -> str:
        """The day it was registered."""
        return f"{self.registered:%Y-%m-%d}" if self.registered else "unknown: not committed here"


def judge_claims(claims: Claims, units: Sequence[Sequence[Unit]]) -> list[ClaimOutcome]:
    """Judge every testable claim, all of them as one family. units: the runs of each, in order."""
    testable = claims.testable
    results = [_result(claim, part) for claim, part in zip(testable, units, strict=True)]
    margins = [(claim.margin or 0) / 100 for claim in testable]
    decisions = decide([one[0] if one else None for one in results], margins)
    dates = registration_dates(claims.path)
    return [
        ClaimOutcome(claim, part, decision, result[1] if result else None, dates[claim.name], len(testable))
        for claim, part, decision, result in zip(testable, units, decisions, results, strict=True)
    ]


def _result(claim: Claim, units: Sequence[Unit]) -> tuple[Difference, Spread | None] | None:
    """Difference of the two rows of a claim and its spread; None until everything is measured."""
    if not all(unit.done() for unit in units):
        return None
    if claim.measure == "entropy":
        runs: dict[str, dict[int, np.ndarray]] = {}
        for unit in units:
            rows = [[row["critic/score/mean"], row["actor/entropy"]] for row in unit.run.metrics()]
            runs.setdefault(row_key(unit), {})[unit.seed] = np.array(rows, dtype=float)
        (_, base), (name, other) = runs.items()
        difference = entropy_difference(name, [(other[seed], base[seed]) for seed in other])
        return difference, spread_of_seeds(difference.error * difference.seeds**0.5)
    frame, baseline = read_samples(units), row_key(units[0])
    (difference,), (pair,) = compare(frame, baseline), pair_rows(frame, baseline)
    return difference, spread_of(pair.cells, pair.weights) if pair.cells else None


def registration_dates(path: Path) -> dict[str, datetime | None]:
    """Date of the commit since which each claim of the file has not changed; None where it differs from the last
    commit, or where no commit is known (an installed package, no git)."""
    now = _by_name(path.read_text(encoding="utf-8"))
    dates: dict[str, datetime | None] = dict.fromkeys(now)
    same = set(now)
    for line in (git(path.parent, "log", "--format=%H %cI", "--", path.name) or "").splitlines():
        commit, _, date = line.partition(" ")
        then = _by_name(git(path.parent, "show", f"{commit}:./{path.name}") or "")
        same = {name for name in same if then.get(name) == now[name]}
        dates.update(dict.fromkeys(same, datetime.fromisoformat(date)))
    return dates


def _by_name(text: str) -> dict[str, Mapping[str, Any]]:
    """Claims of a file as plain data, without what may be said after their runs; none if it is no file of claims."""
    try:
        claims = yaml.safe_load(text)["claims"]
        return {claim["name"]: {key: value for key, value in claim.items() if key != "means"} for claim in claims}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError):
        return {}
