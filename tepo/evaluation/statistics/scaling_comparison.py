"""Comparison of rows by their saturating fits: higher ceiling, faster, the same or undecided (docs/evaluation.md)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from tepo.evaluation.statistics.comparison import Difference, difference_of
from tepo.evaluation.statistics.comparison_verdict import Verdict
from tepo.evaluation.statistics.equivalence import Decision, decide
from tepo.evaluation.statistics.intervals import Estimate, estimate
from tepo.evaluation.statistics.scaling_fit import Curve, Fit, Prediction, Problems, fit, predict_last_third


class CurveVerdict(StrEnum):
    """Words for a row beside the baseline."""

    HIGHER = "higher ceiling"
    LOWER = "lower ceiling"
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "the same"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class RunCurve:
    """The curve of one run. problems: benchmark -> [n + 1, P], the share of right responses to each validation problem,
    untrained and at each score. ended: how the run ended before its last step, "" otherwise."""

    curve: Curve
    problems: Problems
    ended: str = ""


@dataclass(frozen=True)
class CurveRule:
    """margin: ceilings within it (in shares) are equivalent. factor: computes within it are. share: of the way to the
    ceiling, at which compute is compared."""

    margin: float
    factor: float
    share: float


@dataclass(frozen=True)
class RowFit:
    """A row's fits, by seed. ceiling in shares, log_compute at the rule's share of the way, with 95% intervals over
    seeds and validation problems, NaN where a fit holds the parameter at its bound. doubt: why the fit is not trusted,
    "" where it is."""

    fits: Mapping[int, Fit]
    ceiling: Estimate
    log_compute: Estimate
    prediction: Prediction
    doubt: str

    @property
    def compute_at_bound(self) -> bool:
        """True where C_mid is at its bound under one seed or more."""
        return any(one.compute_at_bound for one in self.fits.values())


@dataclass(frozen=True)
class RowVerdict:
    """A row beside the baseline. ceiling: its minus the baseline's. speed: log compute likewise, so negative is faster.
    None where a fit of the two is not trusted, or no seed is shared; speed also where a C_mid is at its bound."""

    ceiling: Decision | None
    speed: Decision | None

    @property
    def verdict(self) -> CurveVerdict:
        """Speeds are compared between equivalent ceilings alone."""
        match self.ceiling and self.ceiling.verdict:
            case Verdict.BETTER:
                return CurveVerdict.HIGHER
            case Verdict.WORSE:
                return CurveVerdict.LOWER
            case Verdict.EQUIVALENT if self.speed:
                return _SPEED.get(self.speed.verdict, CurveVerdict.UNDECIDED)
        return CurveVerdict.UNDECIDED


# `better` is more compute
_SPEED = {
    Verdict.BETTER: CurveVerdict.SLOWER,
    Verdict.WORSE: CurveVerdict.FASTER,
    Verdict.EQUIVALENT: CurveVerdict.SAME,
}


def fit_row(runs: Mapping[int, RunCurve], rule: CurveRule) -> RowFit:
    """runs: by seed. Raises ValueError for too few scores."""
    fits = {seed: fit(run.curve) for seed, run in runs.items()}
    prediction = predict_last_third([run.curve for run in runs.values()])
    ceiling, speed = map(estimate, _cells(fits, runs, rule, list(runs)))
    # A parameter at its bound does not move with the scores, which is not a small error but an unknown one.
    if any(one.ceiling_at_bound for one in fits.values()):
        ceiling = replace(ceiling, low=math.nan, high=math.nan, error=math.nan)
    if any(one.compute_at_bound for one in fits.values()):
        speed = replace(speed, low=math.nan, high=math.nan, error=math.nan)
    doubt = "" if prediction.good else "the last third is missed by more than noise"
    if prediction.noise > rule.margin:
        doubt = f"noise alone could miss the last third by {100 * prediction.noise:.1f} points"
    if no_ceiling := [seed for seed, one in fits.items() if one.no_ceiling]:
        doubt = f"no ceiling in sight (seed {', '.join(map(str, no_ceiling))})"
    if ended := [f"seed {seed}: {run.ended}" for seed, run in runs.items() if run.ended]:
        doubt = ", ".join(ended)
    return RowFit(fits, ceiling, speed, prediction, doubt)


def compare_rows(
    rows: Mapping[str, RowFit], runs: Mapping[str, Mapping[int, RunCurve]], against: Mapping[str, str], rule: CurveRule
) -> dict[str, RowVerdict]:
    """Compare each row of `against` with its baseline, ceilings and speeds as one family, in which a missing row or one
    whose fit is not trusted counts too."""
    ceilings: list[Difference | None] = []
    speeds: list[Difference | None] = []
    for name, baseline in against.items():
        trusted = all(one in rows and not rows[one].doubt for one in (name, baseline))
        shared = sorted(set(runs[name]) & set(runs[baseline])) if trusted else []
        ceiling = speed = None
        if shared:
            own, base = (_cells(rows[one].fits, runs[one], rule, shared) for one in (name, baseline))
            ceiling = _difference(name, "ceiling", own[0], base[0])
            if not any(rows[one].fits[seed].compute_at_bound for one in (name, baseline) for seed in shared):
                speed = _difference(name, "speed", own[1], base[1])
        ceilings.append(ceiling)
        speeds.append(speed)
    margins = [rule.margin] * len(ceilings) + [math.log(rule.factor)] * len(speeds)
    decisions = decide([*ceilings, *speeds], margins)
    return {name: RowVerdict(decisions[i], decisions[i + len(against)]) for i, name in enumerate(against)}


def _difference(row: str, what: str, own: Problems, base: Problems) -> Difference:
    one = estimate({name: own[name] - base[name] for name in own})
    return difference_of(row, what, one, seeds=len(next(iter(own.values()))))


def _cells(
    fits: Mapping[int, Fit], runs: Mapping[int, RunCurve], rule: CurveRule, seeds: Sequence[int]
) -> list[dict[str, np.ndarray]]:
    """Contributions of each problem to the ceiling, and to the log compute: benchmark -> [S, P] each."""
    ceilings = [fits[seed].ceiling_cells(runs[seed].problems) for seed in seeds]
    speeds = [fits[seed].speed_cells(rule.share, runs[seed].problems) for seed in seeds]
    return [{name: np.stack([one[name] for one in parts]) for name in parts[0]} for parts in (ceilings, speeds)]
