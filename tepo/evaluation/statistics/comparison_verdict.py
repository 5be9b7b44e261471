"""Words for a difference between two rows, and the correction of their p; apart from the comparison, because plans and
claims need neither pandas nor scipy."""

from enum import StrEnum

import numpy as np

LEVEL = 0.95
FEWEST_SEEDS = 3  # of a verdict: two give one by luck more often than they say


class DeltaVerdict(StrEnum):
    """Words for a difference."""

    BETTER = "better"
    WORSE = "worse"
    NOT_DECIDED = "not decided"  # of rows and their baseline
    NO_VERDICT = "no verdict"  # of fewer than FEWEST_SEEDS
    NOT_COMPARABLE = "not comparable"


def holm(p: np.ndarray, family: int | None = None) -> np.ndarray:
    """Holm's step-down adjusted p-values [n]; NaN stays NaN. Those of a family that are not known count as a p of 1,
    which is never rejected; by default the family is those that are known. Holm 1979."""
    adjusted = np.full(len(p), np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    factors = (len(order) if family is None else family) - np.arange(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted
