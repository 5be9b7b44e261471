"""Words for a difference between two rows; apart from the comparison, because plans and claims need no pandas."""

from enum import StrEnum


class Verdict(StrEnum):
    """Words for a difference."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"  # within a stated margin: tepo.evaluation.statistics.equivalence
    UNDECIDED = "undecided"  # neither equivalent nor different: of claims and curves
    NOT_DECIDED = "not decided"  # of rows and their baseline
    ONE_SEED = "one seed: no verdict"
    NOT_COMPARABLE = "not comparable"
