import numpy as np
import pytest

from perf import statistics_calibration as calibration
from tepo.evaluation.statistics.intervals import estimate

pytestmark = pytest.mark.disaster

STUDIES = 20_000
LUCK = {luck.name: luck for luck in calibration.LUCKS}
WITHIN = 2 * (0.05 * 0.95 / STUDIES) ** 0.5


def test_the_simulated_test_is_that_of_the_estimate() -> None:
    """Differences [seeds, problems] by themselves, and what the calibration keeps of them."""
    random = np.random.default_rng(0)
    for seeds in (3, 8):
        d = random.normal(0.01, 0.02, (seeds, 1)) + random.normal(0, 0.3, (seeds, calibration.ITEMS))
        of_problems = np.array([d.mean(axis=0).var(ddof=1) / calibration.ITEMS])
        low, high = calibration.interval_test(d.mean(axis=1)[None], of_problems)
        assert 2 * min(low, high) == pytest.approx(estimate({"b": d}).p)


@pytest.mark.parametrize("seeds", [3, 8])
def test_the_interval_holds_its_level_where_both_rows_have_the_same_luck(seeds: int) -> None:
    for luck in (calibration.NORMAL, *calibration.BOTH_ROWS):
        found = calibration.errors(luck, seeds, STUDIES)
        one = np.array([part[0] for part in found.values()])
        assert (one < 0.05 + WITHIN).all(), (luck, one)


@pytest.mark.parametrize(("deviation", "seeds", "share"), [(0.002, 3, 0.989), (0.02, 2, 0.924), (0.02, 8, 0.956)])
def test_intervals_contain_the_truth_as_often_as_the_document_says(deviation: float, seeds: int, share: float) -> None:
    assert calibration.coverage(deviation, seeds, STUDIES) == pytest.approx(share, abs=0.006)  # three errors


def test_rare_bad_runs_in_one_row_break_it() -> None:
    """The row with the bad runs seems better: of eight, none is bad in 43% of the studies."""
    alarms = [calibration.errors(luck, 8, STUDIES)["false alarms"][0] for luck in calibration.ONE_ROW[:3]]
    assert alarms == sorted(alarms)
    assert alarms[1] > 0.09
    ten = calibration.errors(LUCK["10% bad in one row, SD 2"], 8, STUDIES)
    assert ten["held"][0] > 0.12 > 0.03 > ten["refuted"][0]
    assert ten["false alarms"][1] > ten["false alarms"][0]  # a family makes it worse, as normal luck does not
    assert calibration.errors(LUCK["10% bad in one row, SD 1"], 8, STUDIES)["false equivalence"][0] > 0.2


@pytest.mark.parametrize(("seeds", "alone", "batch"), [(3, 0.113, 0.116), (5, 0.141, 0.167), (8, 0.154, 0.271)])
def test_claims_hold_wrongly_as_often_as_the_document_says(seeds: int, alone: float, batch: float) -> None:
    """A claim for the row with bad runs where the truth is the end of its region: by itself, and in a batch of 15."""
    holds = calibration.errors(LUCK["10% bad in one row, SD 2"], seeds, STUDIES)["held"]
    assert tuple(holds[:2]) == pytest.approx((alone, batch), abs=0.035)  # three errors
