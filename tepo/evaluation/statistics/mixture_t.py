"""Distance of an estimated mean from the truth: Student's t of the seeds and of the problems, mixed.

The squared error of a mean is a sum of two variances, estimated from few seeds and from many problems. One t with
Satterthwaite's degrees of freedom trusts a few seeds that happen to agree: it then has many degrees of freedom just
where the error is too small. Here the tail is that of each part's own t, weighted by its share of the variance, as
Cochran's test (1964) weights the critical values. perf/statistics_calibration.py shows what either does.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit  # not scipy.stats, whose import takes half a second

_HALVINGS = 32


@dataclass(frozen=True)
class Tails:
    """The distribution of (mean - truth) / error: symmetric, like Student's t.

    problems, seeds: degrees of freedom. share: of the variance that is the seeds'. Numbers, or arrays of one shape.
    """

    problems: Any
    seeds: Any = 1.0
    share: Any = 0.0

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


UNKNOWN = Tails(math.nan)  # of what has no interval
