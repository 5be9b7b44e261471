"""Words for a difference, and the correction of their p. Light: plans and claims need neither pandas nor scipy."""

from enum import StrEnum

import numpy as np

LEVEL = 0.95
FEWEST_SEEDS = 3  # of a verdict on rows: two give one by luck more often than they say


class DeltaVerdict(StrEnum):
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


def holm(p: np.ndarray, family: int | None = None) -> np.ndarray:
    """Holm's step-down adjusted p-values [n]; NaN stays NaN. Those of a family that are not known count as a p of 1,
    which is never rejected; by default the family is those that are known. Holm 1979."""
    adjusted = np.full(len(p), np.nan)
    indices = np.flatnonzero(~np.isnan(p))
    order = indices[np.argsort(p[indices], kind="stable")]
    factors = (len(order) if family is None else family) - np.arange(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted
