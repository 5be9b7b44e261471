"""What can be asked of a difference, where it lies, and the words of the answer. Light: plans and claims need neither
pandas nor scipy.

Two hypotheses stand behind a region, and exactly one of them is true: the true difference lies outside, or inside. The
answer is that it holds where the first is rejected and that it is refuted where the second is. docs/claims.md gives the
tests."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tepo.evaluation.statistics.intervals import Estimate

LEVEL = 0.95
FEWEST_SEEDS = 3  # of a verdict on rows: two give one by luck more often than they say


class Verdict(StrEnum):
    """Words for a difference: of a row and its baseline the first three, of a claim the next three."""

    BETTER = "better"
    WORSE = "worse"
    NOT_DECIDED = "not decided"
    HOLDS = "holds"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    NO_VERDICT = "no verdict"  # of fewer seeds than a verdict takes
    NOT_COMPARABLE = "not comparable"
    NOT_TESTED = "not tested"  # in a fixed order, behind a claim that does not hold


@dataclass(frozen=True)
class Region:
    """The differences from low to high or, where `outside`, those beyond both. In shares or nats; ends may be
    infinite."""

    low: float = -math.inf
    high: float = math.inf
    outside: bool = False

    @property
    def one_sided(self) -> bool:
        """Tell whether it has one end."""
        return math.isinf(self.low) or math.isinf(self.high)

    def p_values(self, one: "Estimate") -> tuple[float, float]:
        """(p of "the truth is not in the region", p of "it is"), each one-sided where the region has one end. Both NaN
        where nothing could be tested. They are never both below 1/2; that a difference is exactly so much no data
        show, so outside of one point the second is 1."""
        if math.isnan(one.mean) or math.isnan(one.error):
            return math.nan, math.nan
        # a truth at low or below it, or at high or above it: both have to be rejected, so the larger p
        inside = min(one.mean - self.low, self.high - one.mean)
        # a truth from low to high: the chance, with the truth at the nearer end, of a difference at least as far from
        # the middle as the measured one on either side; the other side counts where the region is narrow
        beyond = max(self.low - one.mean, one.mean - self.high)
        if one.error == 0:
            pair = float(inside <= 0), float(beyond <= 0)
        else:
            pair = _tail(one, inside), min(_tail(one, beyond) + _tail(one, beyond + self.high - self.low), 1.0)
        if not self.outside:
            return pair
        return pair[1], 1.0 if self.low == self.high else pair[0]


DIFFERS = Region(0, 0, outside=True)  # what a table asks of each row and its baseline


def _tail(one: "Estimate", distance: float) -> float:
    """Probability of luck beyond a distance."""
    return 0.0 if distance == math.inf else float(one.tails.below(-distance / one.error))


def holm(p: np.ndarray, family: int | None = None) -> np.ndarray:
    """Holm's step-down adjusted p-values [n]; NaN stays NaN. Those of a family that are not known count as a p of 1,
    which is never rejected; by default the family is those that are known. Holm 1979."""
    adjusted = np.full(len(p), np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    factors = (len(order) if family is None else family) - np.arange(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted
