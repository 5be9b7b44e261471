"""Holds, refuted or undecided: differences judged against the regions that were stated of them, as one family."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tepo.evaluation.statistics.comparison import Difference, holm
from tepo.evaluation.statistics.intervals import LEVEL
from tepo.evaluation.statistics.region import Outcome, Region


@dataclass(frozen=True)
class RegionDecision:
    """A difference judged against a region. p_outside, p_region: of the hypotheses that the truth is not in the region,
    and that it is, corrected over the family; NaN where nothing could be tested. tested: False behind a claim that does
    not hold, in a fixed order."""

    difference: Difference
    region: Region
    p_outside: float
    p_region: float
    tested: bool = True

    @property
    def outcome(self) -> Outcome:
        """A corrected p is at least the plain one, so that never both are below 5%."""
        if math.isnan(self.p_outside):
            return Outcome.NOT_COMPARABLE
        if not self.tested:
            return Outcome.NOT_TESTED
        if self.p_outside < 1 - LEVEL:
            return Outcome.HOLDS
        return Outcome.REFUTED if self.p_region < 1 - LEVEL else Outcome.UNDECIDED

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
    differences: Sequence[Difference | None], regions: Sequence[Region], *, in_order: bool = False
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
    held = [one is not None and one.outcome is Outcome.HOLDS for one in judged]
    reached = held.index(False) if False in held else len(held)
    return [one and replace(one, tested=place <= reached) for place, one in enumerate(judged)]
