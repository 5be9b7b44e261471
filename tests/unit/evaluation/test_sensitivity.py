"""Sensitivity to a setting, by hand."""

import math

import numpy as np
import pytest

from tepo.evaluation.statistics.sensitivity import sensitivity

ONE = {"mix": {"1e-4": np.array([0.6, 0.8]), "2e-4": np.array([0.5, 0.7]), "1e-3": np.array([0.1, 0.1])}}
TWO = {**ONE, "sparse": {"1e-4": np.array([0.2, 0.2]), "2e-4": np.array([0.4, 0.4]), "1e-3": np.array([0.0, 0.0])}}


def test_one_environment_by_hand() -> None:
    """Means 70, 60, 10: the best is 70, and a blind choice gets 46.7."""
    found = sensitivity(ONE)
    assert (found.best.value, found.lost.value, found.one_for_all.value) == pytest.approx((0.7, 0.7 - 1.4 / 3, 0.0))
    assert found.within(2) == ["1e-4"]
    assert found.within(10) == ["1e-4", "2e-4"]


def test_two_environments_by_hand() -> None:
    """The best of each is 70 and 40, so 55 with own settings. One setting for both has 45, 50 or 5."""
    found = sensitivity(TWO)
    assert found.best.value == pytest.approx(0.55)
    assert found.one_for_all.value == pytest.approx(0.05)
    assert found.lost.value == pytest.approx(((0.7 - 1.4 / 3) + (0.4 - 0.2)) / 2)
    assert found.means == pytest.approx({"1e-4": 0.45, "2e-4": 0.5, "1e-3": 0.05})


def test_intervals_hold_the_value_grow_with_the_spread_and_need_two_seeds() -> None:
    random = np.random.default_rng(0)
    wide, narrow = (
        sensitivity({"e": {str(h): 0.5 - 0.1 * h + scale * random.standard_normal(8) for h in range(3)}}).lost
        for scale in (0.03, 0.003)
    )
    for one in (wide, narrow):
        assert one.low < one.value < one.high
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    single = sensitivity({"e": {"a": np.array([0.5]), "b": np.array([0.4])}})
    assert single.lost.value == pytest.approx(0.05)
    assert math.isnan(single.lost.low)
    assert math.isnan(single.best.high)


def test_the_interval_of_the_best_covers() -> None:
    """One setting far above the others: then the best is a plain mean, whose interval should hold it 95 times of 100.
    Five seeds by the percentile bootstrap give 88 to 90; it is wide enough to describe."""
    random, hits = np.random.default_rng(1), 0
    for _ in range(300):
        scores = {"e": {"a": 0.7 + 0.02 * random.standard_normal(5), "b": 0.2 + 0.02 * random.standard_normal(5)}}
        best = sensitivity(scores).best
        hits += best.low <= 0.7 <= best.high
    assert hits / 300 > 0.85
