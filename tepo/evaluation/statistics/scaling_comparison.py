"""Comparison of rows by their saturating fits: higher ceiling, faster, the same or undecided (docs/evaluation.md)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from tepo.evaluation.statistics.comparison import Difference, Verdict
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
    ceiling, speed = (estimate(_stacked(cells, list(runs))) for cells in _cells(fits, runs, rule))
    if any(one.ceiling_at_bound for one in fits.values()):
        ceiling = _unknown_error(ceiling)
    if any(one.compute_at_bound for one in fits.values()):
        speed = _unknown_error(speed)
    return RowFit(fits, ceiling, speed, prediction, _doubt(fits, runs, prediction, rule.margin))


def _unknown_error(one: Estimate) -> Estimate:
    """A parameter at its bound does not move with the scores, which is not a small error but an unknown one."""
    return replace(one, low=math.nan, high=math.nan, error=math.nan)


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
        if not shared:
            ceilings.append(None)
            speeds.append(None)
            continue
        own, base = (
            [_stacked(cells, shared) for cells in _cells(rows[one].fits, runs[one], rule)] for one in (name, baseline)
        )
        ceilings.append(_difference(name, "ceiling", own[0], base[0]))
        known = not any(rows[one].fits[seed].compute_at_bound for one in (name, baseline) for seed in shared)
        speeds.append(_difference(name, "speed", own[1], base[1]) if known else None)
    margins = [rule.margin] * len(ceilings) + [math.log(rule.factor)] * len(speeds)
    decisions = decide([*ceilings, *speeds], margins)
    return {name: RowVerdict(decisions[i], decisions[i + len(against)]) for i, name in enumerate(against)}


def _difference(row: str, what: str, own: Problems, base: Problems) -> Difference:
    """Difference of two rows on the same validation problems and seeds."""
    one = estimate({name: own[name] - base[name] for name in own})
    return Difference(
        row, what, one.mean, one.low, one.high, one.half, one.p,
        seeds=len(next(iter(own.values()))), error=one.error, tails=one.tails,
    )  # fmt: skip


def _cells(
    fits: Mapping[int, Fit], runs: Mapping[int, RunCurve], rule: CurveRule
) -> tuple[dict[int, Problems], dict[int, Problems]]:
    """Contributions of each problem to the ceiling, and to the log compute, by seed."""
    return (
        {seed: one.ceiling_cells(runs[seed].problems) for seed, one in fits.items()},
        {seed: one.speed_cells(rule.share, runs[seed].problems) for seed, one in fits.items()},
    )


def _stacked(cells: Mapping[int, Problems], seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """Benchmark -> [S, P]."""
    return {name: np.stack([cells[seed][name] for seed in seeds]) for name in cells[seeds[0]]}


def _doubt(fits: Mapping[int, Fit], runs: Mapping[int, RunCurve], prediction: Prediction, margin: float) -> str:
    if ended := [f"seed {seed}: {run.ended}" for seed, run in runs.items() if run.ended]:
        return ", ".join(ended)
    if no_ceiling := [seed for seed, one in fits.items() if one.no_ceiling]:
        return f"no ceiling in sight (seed {', '.join(map(str, no_ceiling))})"
    if prediction.noise > margin:
        return f"noise alone could miss the last third by {100 * prediction.noise:.1f} points"
    return "" if prediction.good else "the last third is missed by more than noise"
