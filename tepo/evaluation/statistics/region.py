"""A stated region of a difference. Light: plans and claims need neither pandas nor scipy.

Two hypotheses stand behind a region, and exactly one of them is true: the true difference lies outside, or inside. The
answer is that it holds where the first is rejected and that it is refuted where the second is. docs/statistics.md gives
the tests."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tepo.evaluation.statistics.intervals import Estimate


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


def _tail(estimate: "Estimate", distance: float) -> float:
    """Probability of luck beyond a distance."""
    return 0.0 if distance == math.inf else float(estimate.tails.below(-distance / estimate.error))
