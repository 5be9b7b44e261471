"""The mean over seeds and problems with its 95% interval. Formulas and their reasons: docs/statistics.md.

Seeds (training runs) and problems are both samples from something larger, and every seed meets the same problems,
so the two are crossed:

    x[s, p] = mean of `correct` over the samples of problem p under seed s  =  mu + a_s + b_p + e_sp.

The interval is as many standard errors of the crossed design to either side as its tails ask for (`Tails`), and the p
is that of the same tails: the interval leaves out 0 exactly where p is below 5%.

A share of right responses (`estimate_share`) has the shape of a bootstrap, as it ends at 0 and 1. It draws seeds, then
problems (whole clusters of samples, the same ones for every drawn seed), n - 1 out of n each (Rao & Wu 1988), and is
scaled to the same number of errors: its own variance counts e three times (Owen 2007, the pigeonhole bootstrap), and
its percentiles know nothing of small numbers of seeds.
"""

import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit  # not scipy.stats, whose import takes half a second

from tepo.evaluation.statistics.verdict import LEVEL

DRAWS = 2000
FEWEST = 10  # problems: from fewer their spread is a guess, and an interval reads ±0 or ±100
_HALVINGS = 32
_ROUNDING = 1e-12  # errors below it are those of sums of equal shares


@dataclass(frozen=True)
class Tails:
    """Distribution of (mean - truth) / error: Student's t of the seeds and of the problems, mixed.

    The squared error of a mean is a sum of two variances, estimated from few seeds and from many problems. One t with
    Satterthwaite's degrees of freedom trusts a few seeds that happen to agree: it then has many degrees of freedom just
    where the error is too small. Here the tail is that of each part's own t, weighted by its share of the variance, as
    Cochran's test (1964) weights the critical values. A test has what either does.

    Numbers, or arrays of one shape. scipy has no such mixture, so its quantile is found by halving."""

    problems: Any  # degrees of freedom
    seeds: Any = 1.0  # degrees of freedom
    share: Any = 0.0  # of the variance that is the seeds'

    def below(self, t: Any) -> Any:
        """The probability of a value below t."""
        return self.share * stdtr(self.seeds, t) + (1 - self.share) * stdtr(self.problems, t)

    def quantile(self, probability: float) -> Any:
        """The t with `probability` below it. It lies between those of the two parts."""
        ends = [stdtrit(freedom, probability) for freedom in (self.problems, self.seeds)]
        low, high = np.broadcast_arrays(np.minimum(*ends), np.maximum(*ends), self.share)[:2]
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            under = self.below(middle) < probability
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        return np.where(np.equal(self.share, 0), ends[0], (low + high) / 2)


UNKNOWN = Tails(math.nan)  # where there is no interval


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval, standard error and the tails of (mean - truth) / error; `p` is two-sided, for the
    hypothesis that the mean is 0. All but the mean are NaN where there are too few problems to say."""

    mean: float
    low: float
    high: float
    error: float
    tails: Tails

    @classmethod
    def symmetric(cls, mean: float, error: float, tails: Tails) -> "Estimate":
        """The interval that the tails give: it leaves out 0 exactly where p is below 5%."""
        half = float(tails.quantile((1 + LEVEL) / 2)) * error
        return cls(mean, mean - half, mean + half, error, tails)

    @classmethod
    def of_variances(cls, mean: float, of_seeds: float, seeds: int, of_problems: float, problems: float) -> "Estimate":
        """The estimate of a mean whose squared error is the sum of two variances, each with its degrees of freedom."""
        total = of_seeds + of_problems
        tails = Tails(problems, seeds, of_seeds / total if total else 0.0)
        return cls.symmetric(mean, total**0.5 if total**0.5 > _ROUNDING else 0.0, tails)

    @property
    def half(self) -> float:
        """Half the width of the interval, for printing mean ± half."""
        return (self.high - self.low) / 2

    @property
    def p(self) -> float:
        """Two-sided p-value of mean = 0."""
        if self.error == 0:
            return 1.0 if self.mean == 0 else 0.0
        return float(2 * self.tails.below(-abs(self.mean) / self.error))


def estimate(cells: Mapping[str, np.ndarray], weights: Mapping[str, float] | None = None) -> Estimate:
    """Weighted mean over benchmarks of the mean over x [S, P], and its interval.

    cells: benchmark -> x[s, p], the same S seeds in the same order everywhere. weights: benchmark -> weight (all 1 if
    not given). Benchmarks are fixed, not drawn, and come in any order. Fewer than FEWEST problems in all: no
    interval."""
    names, share = in_order(cells, weights)
    mean = float(sum(part * cells[name].mean() for name, part in zip(names, share, strict=True)))
    if _problems(cells) < FEWEST:
        return Estimate(mean, math.nan, math.nan, math.nan, UNKNOWN)
    of_problems, freedom, of_seeds = crossed_variances([cells[name] for name in names], share)
    seeds = len(cells[names[0]])
    if seeds == 1:  # which says nothing about their spread
        return Estimate.of_variances(mean, 0.0, 1, of_problems, freedom)
    # the noise e / (SP) counts twice: a touch wide, where subtracting it once would leave too small an error whenever a
    # few seeds happen to agree
    return Estimate.of_variances(mean, of_seeds, seeds - 1, of_problems, freedom)


def estimate_share(
    cells: Mapping[str, np.ndarray],
    weights: Mapping[str, float] | None = None,
    *,
    draws: int = DRAWS,
    drawn: dict[str, np.ndarray] | None = None,
) -> Estimate:
    """`estimate` for shares x in 0..1 with the shape of the bootstrap, kept in 0..1. Where all responses are right, or
    all wrong, nothing varies and the far end is Clopper and Pearson's exact bound, problems being the trials (1934).
    scipy.stats.bootstrap draws along one axis, and its draws would give other intervals than those on record.

    Problems and seeds are sorted by name, as the bootstrap draws indices: the same (benchmark, P, draws) always
    draws the same problems. drawn: sums of the draws by benchmark, kept from one call to the next on the same
    cells."""
    plain = estimate(cells, weights)
    if plain.error == 0 and round(plain.mean, 9) in (0, 1):
        far = ((1 - LEVEL) / 2) ** (1 / _problems(cells))
        return replace(plain, low=far) if plain.mean > 0.5 else replace(plain, high=1 - far)
    if not plain.error > 0:  # 0 or NaN
        return plain
    names, share = in_order(cells, weights)
    outer = _unit_weights("seeds", len(cells[names[0]]), draws)
    values = np.zeros(draws)
    sums = {} if drawn is None else drawn
    for name, part in zip(names, share, strict=True):
        inner = _unit_weights(name, cells[name].shape[1], draws)
        if name not in sums:
            sums[name] = np.einsum("ds,ds->d", outer, inner @ cells[name].T)
        values += part / (inner[0].sum() * outer[0].sum()) * sums[name]
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    scale = plain.half / float(values.std() * ndtri((1 + LEVEL) / 2))
    ends = plain.mean - scale * (plain.mean - low), plain.mean + scale * (high - plain.mean)
    return replace(plain, low=max(ends[0], 0.0), high=min(ends[1], 1.0))


def in_order(cells: Mapping[str, np.ndarray], weights: Mapping[str, float] | None) -> tuple[list[str], np.ndarray]:
    """Benchmarks in the order of their names, and their weights, which add up to 1."""
    names = sorted(cells)
    share = np.array([1.0 if weights is None else weights[name] for name in names])
    return names, share / share.sum()


def _problems(cells: Mapping[str, np.ndarray]) -> int:
    return sum(x.shape[1] for x in cells.values())


def crossed_variances(cells: Sequence[np.ndarray], share: np.ndarray) -> tuple[float, float, float]:
    """Variances of a weighted mean: by problems, with its degrees of freedom, and by seeds, NaN for one seed: the sum
    over benchmarks of weight^2 x variance of problem means / P, and the variance of seed means / S. Both hold the noise
    e / (SP). cells: of each benchmark, x [S, P]. share: weights that add up to 1."""
    parts = [
        (w**2 * x.mean(axis=0).var(ddof=1) / x.shape[1], x.shape[1] - 1)
        for w, x in zip(share, cells, strict=True)
        if x.shape[1] > 1
    ]
    by_problem, freedoms = np.array(parts).reshape(-1, 2).T
    means = sum(w * x.mean(axis=1) for w, x in zip(share, cells, strict=True))
    of_seeds = float(means.var(ddof=1)) / len(means) if len(means) > 1 else math.nan
    return float(by_problem.sum()), float(satterthwaite(by_problem, freedoms)), of_seeds


def satterthwaite(variances: np.ndarray, freedoms: np.ndarray) -> np.ndarray:
    """Degrees of freedom of the sum of variances [..., n], each with its own [n]; infinite where nothing varies."""
    with np.errstate(invalid="ignore", divide="ignore"):
        degrees = variances.sum(axis=-1) ** 2 / (variances**2 / freedoms).sum(axis=-1)
    return np.nan_to_num(degrees, nan=np.inf, posinf=np.inf)


@functools.lru_cache(maxsize=32)
def _unit_weights(name: str, units: int, draws: int) -> np.ndarray:
    """Number of times that each unit is drawn, [draws, units]: n - 1 draws out of n (one unit: itself)."""
    size = max(units - 1, 1)
    random = np.random.default_rng([0, zlib.crc32(name.encode()), units])
    weights = np.empty((draws, units))
    for start in range(0, draws, 250):
        rows = min(250, draws - start)
        indices = random.integers(0, units, (rows, size)) + np.arange(rows)[:, None] * units
        weights[start : start + rows] = np.bincount(indices.ravel(), minlength=rows * units).reshape(rows, units)
    return weights
