"""A stated region of a difference, and what the data say of it. Light: plans and claims need neither pandas nor scipy.

Two hypotheses stand behind a region, and exactly one of them is true: the true difference lies outside, or inside. The
claim holds where the first is rejected and is refuted where the second is. docs/evaluation.md gives the tests."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tepo.evaluation.statistics.comparison import Difference


class Outcome(StrEnum):
    """Words for a claim."""

    HOLDS = "holds"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
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

    def p_values(self, one: "Difference") -> tuple[float, float]:
        """(p of "the truth is not in the region", p of "it is"), each one-sided where the region has one end. Both NaN
        where nothing could be tested. They are never both below 1/2."""
        if math.isnan(one.delta) or math.isnan(one.error):
            return math.nan, math.nan
        pair = _p_beyond(one, self.low, self.high), _p_within(one, self.low, self.high)
        return pair[::-1] if self.outside else pair


def _p_beyond(one: "Difference", low: float, high: float) -> float:
    """p of a truth at low or below it, or at high or above it: both have to be rejected, so the larger."""
    inside = min(one.delta - low, high - one.delta)
    return float(inside <= 0) if one.error == 0 else _tail(one, inside)


def _p_within(one: "Difference", low: float, high: float) -> float:
    """p of a truth from low to high: the chance, with the truth at the nearer end, of a difference at least as far from
    the middle as the measured one on either side. The other side counts where the region is narrow beside the error."""
    beyond = max(low - one.delta, one.delta - high)
    if one.error == 0:
        return float(beyond <= 0)
    return min(_tail(one, beyond) + _tail(one, beyond + high - low), 1.0)


def _tail(one: "Difference", distance: float) -> float:
    """Probability of luck beyond a distance."""
    return 0.0 if distance == math.inf else float(one.tails.below(-distance / one.error))
