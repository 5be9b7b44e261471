"""A stated region of a difference, and what the data say of it: holds, refuted or undecided, as one family. Light:
plans and claims need neither pandas nor scipy.

Two hypotheses stand behind a region, and exactly one of them is true: the true difference lies outside, or inside. The
claim holds where the first is rejected and is refuted where the second is. docs/claims.md gives the tests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from tepo.evaluation.statistics.comparison_verdict import LEVEL, holm

if TYPE_CHECKING:
    from tepo.evaluation.statistics.comparison import Difference


class RegionVerdict(StrEnum):
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
        # a truth at low or below it, or at high or above it: both have to be rejected, so the larger p
        inside = min(one.delta - self.low, self.high - one.delta)
        # a truth from low to high: the chance, with the truth at the nearer end, of a difference at least as far from
        # the middle as the measured one on either side; the other side counts where the region is narrow
        beyond = max(self.low - one.delta, one.delta - self.high)
        if one.error == 0:
            pair = float(inside <= 0), float(beyond <= 0)
        else:
            pair = _tail(one, inside), min(_tail(one, beyond) + _tail(one, beyond + self.high - self.low), 1.0)
        return pair[::-1] if self.outside else pair


def _tail(one: "Difference", distance: float) -> float:
    """Probability of luck beyond a distance."""
    return 0.0 if distance == math.inf else float(one.tails.below(-distance / one.error))


@dataclass(frozen=True)
class RegionDecision:
    """A difference judged against a region. Both p are corrected over the family, NaN where nothing could be tested."""

    difference: "Difference"
    region: Region
    p_outside: float  # of the hypothesis that the truth is not in the region
    p_region: float  # that it is
    tested: bool = True  # False in a fixed order behind a claim that does not hold

    @property
    def outcome(self) -> RegionVerdict:
        """A corrected p is at least the plain one, so that never both are below 5%."""
        if math.isnan(self.p_outside):
            return RegionVerdict.NOT_COMPARABLE
        if not self.tested:
            return RegionVerdict.NOT_TESTED
        if self.p_outside < 1 - LEVEL:
            return RegionVerdict.HOLDS
        return RegionVerdict.REFUTED if self.p_region < 1 - LEVEL else RegionVerdict.UNDECIDED

    @property
    def decides(self) -> bool:
        """Tell whether anything was tested: only then its p says something."""
        return self.tested and not math.isnan(self.p_outside)

    @property
    def p(self) -> float:
        """The p of what was rejected; where nothing was, the smaller of the two."""
        return min(self.p_outside, self.p_region)

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the interval of this comparison alone: 90% where the region has one end, so that the claim alone is
        decided exactly where the interval leaves out the end, else 95%."""
        below = LEVEL if self.region.one_sided else (1 + LEVEL) / 2
        half = float(self.difference.tails.quantile(below)) * self.difference.error
        return self.difference.delta - half, self.difference.delta + half


def judge_regions(
    differences: Sequence["Difference | None"], regions: Sequence[Region], *, in_order: bool = False
) -> list[RegionDecision | None]:
    """Each difference against its region. None: not measured yet, which counts in the family.

    Holm's procedure is over the n hypotheses "it is outside", and apart from them over the n hypotheses "it is inside":
    the chance of any wrong "holds" is at most 5%, and so is that of any wrong "refuted". One procedure over both would
    multiply every p by n: of each pair one is always true, so no rejection makes the rest easier.

    in_order: each is tested at 5%, and none behind the first that does not hold."""
    pairs = [
        (math.nan, math.nan) if one is None else region.p_values(one)
        for one, region in zip(differences, regions, strict=True)
    ]
    p = np.reshape(pairs, (-1, 2))
    if not in_order:
        counted = np.where(np.isnan(p), 1.0, p)
        p = np.where(np.isnan(p), np.nan, np.transpose([holm(column) for column in counted.T]).reshape(p.shape))
    judged = [
        None if one is None else RegionDecision(one, region, float(outside), float(inside))
        for one, region, (outside, inside) in zip(differences, regions, p, strict=True)
    ]
    if not in_order:
        return judged
    held = [one is not None and one.outcome is RegionVerdict.HOLDS for one in judged]
    reached = held.index(False) if False in held else len(held)
    return [one and replace(one, tested=place <= reached) for place, one in enumerate(judged)]
