"""Power of a comparison: the smallest difference that a number of seeds and problems finds with 80%, from the variances
of measured differences. What a plan makes of it: docs/statistics.md.

The model is that of the interval: d[s, p] = mu + a_s + b_p + e_sp, seeds and problems crossed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.special import chdtri

from tepo.evaluation.statistics.intervals import FEWEST, LEVEL, Tails, in_order, satterthwaite
from tepo.evaluation.statistics.verdict import FEWEST_SEEDS

POWER = 0.8
CAUTION = 0.85  # how surely the variance between seeds is not larger than what a plan takes
MOST_SEEDS = 200
_DRAWS = 10_000


@dataclass(frozen=True)
class Spread:
    """Variances of a difference between rows; arrays are by benchmark."""

    seed: float  # of a_s, averaged over benchmarks by weight
    problem: np.ndarray  # of b_p
    rest: np.ndarray  # of e_sp
    weights: np.ndarray  # they sum to 1
    problems: np.ndarray  # their number

    def cautious(self, freedom: float) -> "Spread":
        """The same with the upper end of a one-sided 85% interval of the variance between seeds, which was estimated
        with so many degrees of freedom (Browne 1995): from three seeds it comes out near 0 too often, and a plan made
        with that promises too much."""
        noise = float((self.weights**2 * self.rest / self.problems).sum())  # of a seed's mean, by its samples
        high = (max(self.seed, 0.0) + noise) * freedom / float(chdtri(freedom, CAUTION))
        return replace(self, seed=high - noise)


def spread_of(cells: Mapping[str, np.ndarray], weights: Mapping[str, float] | None) -> Spread | None:
    """The variances behind differences x [S, P] on each benchmark, by mean squares (Henderson's method for a crossed
    design). One may come out below 0, and counts as 0 only after pooling: else the pool would be too wide. None for one
    seed, a benchmark of one problem, or fewer than FEWEST problems in all."""
    names, share = in_order(cells, weights)
    sizes = np.array([cells[name].shape[1] for name in names])
    seeds = len(cells[names[0]])
    if seeds < 2 or sizes.min() < 2 or sizes.sum() < FEWEST:
        return None
    residual_variances = []  # the variance of e: what seed and problem leave of x
    for name in names:
        x = cells[name]
        residuals = x - x.mean(axis=0) - x.mean(axis=1, keepdims=True) + x.mean()
        residual_variances.append(float((residuals**2).sum() / ((x.shape[0] - 1) * (x.shape[1] - 1))))
    rest = np.array(residual_variances)
    problem = np.array([cells[name].mean(axis=0).var(ddof=1) for name in names]) - rest / seeds
    of_seeds = sum(w * cells[name].mean(axis=1) for w, name in zip(share, names, strict=True))
    seed = float(np.var(of_seeds, ddof=1) - (share**2 * rest / sizes).sum())
    return Spread(seed, problem, rest, share, sizes)


def pooled(spreads: Sequence[Spread]) -> Spread:
    """The mean variances of several differences on the same benchmarks."""
    return Spread(*(np.mean([getattr(spread, field.name) for spread in spreads], axis=0) for field in fields(Spread)))


def found_from(spread: Spread, seeds: int, level: float = 1 - LEVEL) -> np.ndarray:
    """The smallest difference that each of 10,000 simulated comparisons detects: quantile x error - luck, in shares.
    Their quantile of 80% is the smallest difference detected with 80% power.

    Errors and tails are estimated as in `intervals`; the mean squares of normal a, b and e are independent and
    chi-squared."""
    random = np.random.default_rng(0)
    per_problem = spread.weights**2 / spread.problems
    rest = float((per_problem * spread.rest).sum())
    of_problems = per_problem * (np.maximum(spread.problem, 0.0) + spread.rest / seeds)
    of_seeds = max(spread.seed, 0.0)
    luck = random.standard_normal(_DRAWS) * (of_seeds / seeds + of_problems.sum()) ** 0.5
    seed_part = (of_seeds + rest) / seeds * random.chisquare(seeds - 1, _DRAWS) / (seeds - 1)
    freedoms = spread.problems - 1
    parts = of_problems * random.chisquare(freedoms, (_DRAWS, len(freedoms))) / freedoms
    total = seed_part + parts.sum(axis=1)
    tails = Tails(satterthwaite(parts, freedoms), seeds - 1, seed_part / total)
    reach: np.ndarray = tails.quantile(1 - level / 2) * total**0.5
    return reach - luck


def smallest(thresholds: np.ndarray) -> float:
    """The difference, or the margin, that 80% of the simulated comparisons detect."""
    return float(np.quantile(thresholds, POWER))


def seeds_needed(spread: Spread, wanted: float, level: float = 1 - LEVEL) -> int | None:
    """The fewest seeds that detect `wanted` with 80% power on the same problems; None for more than MOST_SEEDS."""

    def enough(seeds: int) -> bool:
        return smallest(found_from(spread, seeds, level)) <= wanted

    if not enough(MOST_SEEDS):
        return None
    low, high = FEWEST_SEEDS - 1, MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
