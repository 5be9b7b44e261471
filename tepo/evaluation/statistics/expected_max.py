"""The best validation score that k random settings give on average, for each k (Dodge et al. 2019, "Show Your Work").

It says what a method costs to tune: a method that needs many draws is low at small k, whatever its best setting gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from tepo.evaluation.statistics.intervals import central

RESAMPLES = 2000


@dataclass(frozen=True)
class Best:
    """The expected best of k draws with its 95% interval, whose ends are NaN where a single draw was made."""

    k: int
    mean: float
    low: float
    high: float


def expected_best(scores: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> list[Best]:
    """For k = 1 … n of n scores: the mean over all sets of k different draws of the best score in the set.

    With scores x_1 <= … <= x_n it is sum_i C(i - 1, k - 1) / C(n, k) x_i: the unbiased estimator of Tang et al. 2020
    ("Showing Your Work Doesn't Always Work", a U-statistic; k = 1 is the mean, k = n the best that was seen). Dodge et
    al. 2019 take k draws with replacement, sum_i ((i / n)^k - ((i - 1) / n)^k) x_i, which is too low for k > 1, since a
    set may hold one draw several times, and changes with n. Low by much where it matters most: at k near n.

    The interval is the percentile bootstrap over draws: it covers which settings were drawn, no training seeds. It is
    too narrow where n is small or k near n. No resample holds a better draw than the best seen, so at k = n that is its
    upper end, and what a luckier draw would give it cannot say. Raises ValueError without scores."""
    values = np.sort(np.asarray(scores, dtype=float))
    n = len(values)
    if n == 0:
        raise ValueError("no scores")
    weights = np.array([[comb(i, k - 1) / comb(n, k) for i in range(n)] for k in range(1, n + 1)])  # [k, i]
    means = weights @ values
    if n == 1:
        return [Best(1, float(means[0]), float("nan"), float("nan"))]
    drawn = np.random.default_rng(seed).integers(0, n, (resamples, n))
    low, high = central(np.sort(values[drawn], axis=1) @ weights.T)
    return [Best(k, float(means[k - 1]), float(low[k - 1]), float(high[k - 1])) for k in range(1, n + 1)]
