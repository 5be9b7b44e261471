"""Words for a difference between two rows; apart from the comparison, because plans and claims need no pandas."""

from enum import StrEnum

FEWEST_SEEDS = 3  # of a verdict: two give one by luck in up to 8% of studies (perf/statistics_calibration.py)


class Verdict(StrEnum):
    """Words for a difference."""

    BETTER = "better"
    WORSE = "worse"
    NOT_DECIDED = "not decided"  # of rows and their baseline
    NO_VERDICT = "no verdict"  # of fewer than FEWEST_SEEDS
    NOT_COMPARABLE = "not comparable"
