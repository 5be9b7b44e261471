"""Outcomes of registered claims, from their runs: by the rule that each was registered with, and by the composite rule.

The composite rule tests what a claim says as it is written (`tepo.evaluation.statistics.region`). Claims registered
before it keep the verdict of their own rule (`tepo.evaluation.statistics.equivalence`), and show the other beside it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property

import numpy as np

from tepo.evaluation.statistics.comparison import AVERAGE, Difference, Pair, corrected, difference_of, pair_rows
from tepo.evaluation.statistics.equivalence import Decision, decide
from tepo.evaluation.statistics.exact_tests import exchange_p, sign_flip_p
from tepo.evaluation.statistics.intervals import LEVEL
from tepo.evaluation.statistics.over_environments import over_environments
from tepo.evaluation.statistics.power import (
    MOST_SEEDS,
    POWER,
    Spread,
    equivalent_from,
    found_from,
    pooled,
    seeds_needed,
    spread_of,
    spread_of_seeds,
)
from tepo.evaluation.statistics.region import Outcome
from tepo.evaluation.statistics.region_decision import RegionDecision, judge_regions
from tepo.evaluation.statistics.training_measures import (
    REALISED_KL,
    Rows,
    censored,
    entropy_gap,
    late_mean,
    log_mean,
    paired_difference,
    steps_to,
)
from tepo.results.claim_history import ClaimHistory
from tepo.results.tables import read_samples, row_key
from tepo.store.evaluation_result import AVERAGE as VALIDATED
from tepo.store.facts import Facts
from tepo.store.thinned_metrics import BEST
from tepo.studies.claims import BASE, Claim, Claims
from tepo.studies.plan import Unit

Places = Sequence[int]
COMPOSITE_SINCE = date(2026, 11, 25)


@dataclass(frozen=True)
class _Result:
    """A measured claim: its difference, also over some seeds or bases, the spread of it, the difference on each seed or
    base, the exact p, and what is said of times that were not measured."""

    difference: Difference
    over: Callable[[Places], Difference]
    spread: Spread | None
    by_seed: Sequence[float]
    exact_p: float
    censored: str = ""


@dataclass(frozen=True)
class ClaimOutcome:
    """A claim that can be run, with what its runs say.

    composite: by the composite rule, decision: by the rule of `expect` where the claim has that. Both None until all of
    its runs are measured, as looking at half of them and going on would make more false alarms than are promised. Until
    then spread is that of the measured claims on the same benchmarks, if any. registered: date of the commit since
    which it reads as it does; late: its batch was registered before. family: number of claims in its batch, over which
    verdicts are corrected. by_seed: the difference on each seed, or on each base, in hundreds of the claim's
    unit. exact_p: two-sided, of this claim alone and without a distribution of luck: that chance dealt the runs to A
    and B (`exchange_p`), or for measures of training and over bases, which are paired, the signs (`sign_flip_p`).
    over: the difference of some of its seeds, or bases, by their place. censored: what is said in place of a difference
    of times that some runs did not live to see; the test takes all planned steps for them."""

    claim: Claim
    units: Sequence[Unit]
    facts: Facts = field(repr=False)
    decision: Decision | None
    composite: RegionDecision | None
    spread: Spread | None
    registered: datetime | None
    late: bool
    family: int
    by_seed: Sequence[float] = ()
    exact_p: float | None = None
    over: Callable[[Places], Difference] | None = None
    censored: str = ""

    @property
    def difference(self) -> Difference | None:
        return self.composite.difference if self.composite else None

    @property
    def done(self) -> int:
        """Runs that are measured."""
        return sum(self.facts.of(unit.id).done for unit in self.units)

    @property
    def outcome(self) -> Outcome | None:
        """Word for the claim by the rule that it was registered with; None until it is judged."""
        if self.decision:
            return self.claim.outcome(self.decision.verdict)
        return self.composite.outcome if self.composite else None

    @cached_property
    def seeds_to_decide(self) -> str:
        """Seeds, or bases, with which the composite rule would decide the claim if A and B were equal, for plans:
        beside a result it would invite to add seeds until one likes it."""
        if self.spread is None:
            return ""
        region = self.claim.tested
        enclosed = region.low < 0 < region.high and np.isfinite([region.low, region.high]).all()
        thresholds = equivalent_from if enclosed else found_from
        level = 2 * (1 - LEVEL) / self.family  # one-sided
        nearest = min(abs(region.low), abs(region.high))
        count = seeds_needed(self.spread, nearest, level, thresholds) or f"more than {MOST_SEEDS}"
        units = "bases" if self.claim.bases else "seeds"
        return f"{count} {units} would decide it with {POWER:.0%} if A and B were equal"

    @property
    def ran(self) -> str:
        """First and last day of its runs; it says so if they began before the claim was registered."""
        days = run_dates(self.units, self.facts)
        ran = " to ".join(dict.fromkeys(f"{day:%Y-%m-%d}" for day in days))
        early = self.registered is not None and bool(days) and days[0] < self.registered
        return f"{ran}, begun before it was registered" if early else ran

    @property
    def since(self) -> str:
        """The day it was registered; it says so if that was after its batch."""
        if self.registered is None:
            return "unknown: not committed here"
        return f"{self.registered:%Y-%m-%d}" + (f", after the first of batch {self.claim.batch}" if self.late else "")


def judge_claims(claims: Claims, units: Sequence[Sequence[Unit]], facts: Facts) -> list[ClaimOutcome]:
    """Judge every testable claim, those of each batch as one family. units: the runs of each, in order."""
    results = {claim.name: _result(claim, part, facts) for claim, part in zip(claims.testable, units, strict=True)}
    runs = {claim.name: part for claim, part in zip(claims.testable, units, strict=True)}
    history, judged = ClaimHistory.read(claims.path), {}
    for batch in {claim.batch for claim in claims.testable}:
        family = [claim for claim in claims.testable if claim.batch == batch]
        found = [result.difference if (result := results[claim.name]) else None for claim in family]
        decisions: Sequence[Decision | None] = [None] * len(family)
        if all(claim.expect for claim in family):
            decisions = decide(found, [(claim.margin or 0) / 100 for claim in family])
        composite = judge_regions(found, [claim.tested for claim in family])
        for claim, decision, by_region in zip(family, decisions, composite, strict=True):
            judged[claim.name] = ClaimOutcome(
                claim,
                runs[claim.name],
                facts,
                decision,
                by_region,
                None if by_region else _spread_of_others(claim, claims, runs, results),
                history.registered[claim.name],
                history.is_late(claim.name),
                len(family),
                by_seed=result.by_seed if (result := results[claim.name]) else (),
                exact_p=result.exact_p if result else None,
                over=result.over if result else None,
                censored=result.censored if result else "",
            )
    return [judged[claim.name] for claim in claims.testable]


def run_dates(units: Sequence[Unit], facts: Facts) -> list[datetime]:
    """Start of the first and of the last of these runs; empty where none is known."""
    sessions = [session for unit in units for session in facts.of(unit.id).made]
    times = sorted(datetime.fromisoformat(str(time)) for one in sessions if (time := one.get("started")))
    return [times[0], times[-1]] if times else []


def _spread_of_others(
    claim: Claim, claims: Claims, runs: Mapping[str, Sequence[Unit]], results: Mapping[str, _Result | None]
) -> Spread | None:
    """Mean spread of the measured claims of the same measure on benchmarks of the same names: of seeds, or of bases."""

    def kind(one: Claim) -> tuple[str, bool, list[str]]:
        return one.measure, bool(one.bases), [name.partition(":")[0] for name in runs[one.name][0].benchmarks]

    like = [other for other in claims.testable if kind(other) == kind(claim)]
    spreads = [one.spread for one in filter(None, (results[one.name] for one in like)) if one.spread]
    return pooled([one for one in spreads if np.array_equal(one.problems, spreads[0].problems)]) if spreads else None


def _result(claim: Claim, units: Sequence[Unit], facts: Facts) -> _Result | None:
    """The two rows of a claim compared; None until everything is measured."""
    if not all(facts.of(unit.id).done for unit in units):
        return None
    if claim.measure != "accuracy":
        return _in_training(claim, units, facts)
    pairs = []
    for part in _by_base(units).values():
        frame, baseline = read_samples(part, facts), row_key(part[0])
        pairs += pair_rows(frame, baseline)
    if claim.bases:
        return _over_bases(pairs)
    (pair,) = pairs

    def over(places: Places) -> Difference:
        return pair.over([claim.seeds[place] for place in places]).difference()

    (difference,) = corrected([pair.difference()])
    by_row = frame.groupby(["row", "seed"])["correct"].mean()
    exact = float(exchange_p(by_row[pair.row].to_numpy(), by_row[baseline].to_numpy()))
    spread = spread_of(pair.cells, pair.weights) if pair.cells else None
    return _Result(difference, over, spread, pair.by_seed(), exact)


def _by_base(units: Sequence[Unit]) -> dict[str, list[Unit]]:
    """The units of each base of a claim; all of them under one name where it names none."""
    groups: dict[str, list[Unit]] = {}
    for unit in units:
        groups.setdefault(unit.row.setting.point.get(BASE, ""), []).append(unit)
    return groups


def _over_bases(pairs: Sequence[Pair]) -> _Result:
    """A minus B on average over such bases. pairs: one a base."""
    known = [pair.cells for pair in pairs if pair.cells]
    if len(known) < len(pairs):
        nothing = Difference(pairs[0].row, AVERAGE)
        return _Result(nothing, lambda places: nothing, None, (), math.nan)
    weights = pairs[0].weights

    def over(places: Places) -> Difference:
        average = over_environments([known[place] for place in places], weights).average
        return difference_of(pairs[0].row, AVERAGE, average, len(places))

    means = {name: np.stack([cells[name].mean(axis=0) for cells in known]) for name in known[0]}
    by_base = [float(np.mean(pair.by_seed())) for pair in pairs]
    exact = float(sign_flip_p(np.array(by_base)))
    return _Result(over(range(len(pairs))), over, spread_of(means, weights), by_base, exact)


def _in_training(claim: Claim, units: Sequence[Unit], facts: Facts) -> _Result:
    """A minus B on each seed; with bases the mean over the seeds of each base."""
    gaps: list[float] = []
    times: tuple[list[float], list[float]] = [], []  # of A and of B, where the measure is one
    for part in _by_base(units).values():
        runs: dict[str, dict[int, _Training]] = {}
        for unit in part:  # read as a record keeps them: the verdict must not depend on which of the two is there
            known = _Training(facts.lasting(unit.id), unit.config.train.steps)
            runs.setdefault(row_key(unit), {})[unit.seed] = known
        (_, base), (name, other) = runs.items()
        by_seed = [_gap(claim, other[seed], base[seed]) for seed in other]
        if claim.measure == "steps_to":
            for side, runs_of in zip(times, (other, base), strict=True):
                side += [_steps(claim, runs_of[seed]) for seed in other]
        gaps += [float(np.mean(by_seed))] if claim.bases else by_seed

    def over(places: Places) -> Difference:
        return paired_difference(name, claim.measure, [gaps[place] for place in places])

    difference = over(range(len(gaps)))
    spread = spread_of_seeds(difference.error * difference.seeds**0.5)
    words = censored(*times, units[0].config.train.steps)
    return _Result(difference, over, spread, gaps, float(sign_flip_p(np.array(gaps))), words)


@dataclass(frozen=True)
class _Training:
    """A run's rows of metrics, and the steps that it was to have."""

    rows: Rows
    steps: int


def _gap(claim: Claim, a: _Training, b: _Training) -> float:
    """Run a minus run b in what a claim measures of training, in hundreds of its unit; NaN where one lacks it."""
    if claim.measure == "entropy":
        pair = [[(row["critic/score/mean"], row["actor/entropy"]) for row in one.rows] for one in (a, b)]
        return entropy_gap(*(np.array(points, float) for points in pair))
    first, second = (_figure(claim, one) for one in (a, b))
    return first - second


def _figure(claim: Claim, run: _Training) -> float:
    """A run's own figure in the measure of a claim, in hundreds of its unit."""
    rows = run.rows
    if claim.measure == "late_entropy":
        return late_mean(rows, "actor/entropy")
    if claim.measure == "late_length":
        return late_mean(rows, "response_length/mean") / 100
    if claim.measure == "late_best":
        sizes = [int(name.removeprefix(BEST)) for name in rows[-1] if name.startswith(BEST)]
        return late_mean(rows, f"{BEST}{max(sizes)}") if sizes else float("nan")
    if claim.measure == "realised_kl":
        return log_mean(rows, REALISED_KL)
    steps = _steps(claim, run)
    return (run.steps if math.isinf(steps) else steps) / 100  # by the rule of registered claims


def _steps(claim: Claim, run: _Training) -> float:
    """Steps of a run to the claim's threshold, infinite where it never gets there."""
    assert claim.threshold is not None
    return steps_to(run.rows, VALIDATED, claim.threshold / 100, run.steps)
