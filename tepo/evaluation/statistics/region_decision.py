"""Holds, refuted or undecided: differences judged against the regions that were stated of them, as one family."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tepo.evaluation.statistics.comparison import Difference, holm
from tepo.evaluation.statistics.intervals import LEVEL
from tepo.evaluation.statistics.region import Outcome, Region


@dataclass(frozen=True)
class RegionDecision:
    """A difference judged against a region. p_outside, p_region: of the hypotheses that the truth is not in the region,
    and that it is, corrected over the family; NaN where nothing could be tested."""

    difference: Difference
    region: Region
    p_outside: float
    p_region: float

    @property
    def outcome(self) -> Outcome:
        """A corrected p is at least the plain one, so that never both are below 5%."""
        if math.isnan(self.p_outside):
            return Outcome.NOT_COMPARABLE
        if self.p_outside < 1 - LEVEL:
            return Outcome.HOLDS
        return Outcome.REFUTED if self.p_region < 1 - LEVEL else Outcome.UNDECIDED

    @property
    def p(self) -> float:
        """The p of what was rejected; where nothing was, the smaller of the two."""
        return min(self.p_outside, self.p_region)


def judge_regions(differences: Sequence[Difference | None], regions: Sequence[Region]) -> list[RegionDecision | None]:
    """Each difference against its region. None: not measured yet, which counts in the family.

    Holm's procedure is over the n hypotheses "it is outside", and apart from them over the n hypotheses "it is inside":
    the chance of any wrong "holds" is at most 5%, and so is that of any wrong "refuted". One procedure over both would
    multiply every p by n: of each pair one is always true, so no rejection makes the rest easier."""
    pairs = [
        (math.nan, math.nan) if one is None else region.p_values(one)
        for one, region in zip(differences, regions, strict=True)
    ]
    p = np.reshape(pairs, (-1, 2))
    counted = np.where(np.isnan(p), 1.0, p)
    adjusted = np.where(np.isnan(p), np.nan, np.transpose([holm(column) for column in counted.T]).reshape(p.shape))
    return [
        None if one is None else RegionDecision(one, region, *map(float, pair))
        for one, region, pair in zip(differences, regions, adjusted, strict=True)
    ]
