"""Words for a difference between two rows; apart from the comparison, because plans and claims need no pandas."""

from enum import StrEnum


class Verdict(StrEnum):
    """Words for a difference."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"  # within a stated margin: tepo.evaluation.statistics.equivalence
    UNDECIDED = "undecided"
    WITHIN_NOISE = "within noise"
    NOT_COMPARABLE = "not comparable"
