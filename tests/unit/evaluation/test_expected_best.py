"""The expected best of k draws: against all sets of k, and against the truth it estimates."""

from itertools import combinations, product
from math import isnan

import numpy as np
import pytest

from tepo.evaluation.statistics.expected_max import expected_best

SCORES = [0.31, 0.62, 0.05, 0.62, 0.44, 0.58]


def test_it_is_the_mean_best_over_all_sets_of_k_different_draws() -> None:
    found = expected_best(SCORES)
    assert [one.k for one in found] == [1, 2, 3, 4, 5, 6]
    for one in found:
        assert one.mean == pytest.approx(np.mean([max(part) for part in combinations(SCORES, one.k)]))
    assert found[0].mean == pytest.approx(np.mean(SCORES))
    assert found[-1].mean == max(SCORES)


def test_draws_with_replacement_would_be_too_low() -> None:
    """Dodge et al.'s estimator, by enumeration: why it is not the one taken."""
    for one in expected_best(SCORES)[1:4]:
        with_replacement = np.mean([max(part) for part in product(SCORES, repeat=one.k)])
        assert with_replacement < one.mean


def test_it_is_unbiased() -> None:
    """The best of k uniform draws is k / (k + 1) on average; with replacement the eighth would be far below."""
    random = np.random.default_rng(0)
    found = [[one.mean for one in expected_best(random.random(8), resamples=2)] for _ in range(4000)]
    assert np.mean(found, axis=0) == pytest.approx([k / (k + 1) for k in range(1, 9)], abs=0.006)


def test_intervals_hold_the_estimate_and_end_at_the_best_seen() -> None:
    for one in expected_best(SCORES):
        assert min(SCORES) <= one.low <= one.mean <= one.high <= max(SCORES)
        assert one.low < one.high
    assert expected_best(SCORES)[-1].high == max(SCORES)
    assert expected_best(SCORES) == expected_best(SCORES[::-1])  # no draw is first


def test_the_interval_of_few_draws_covers_often_but_not_as_often_as_it_says() -> None:
    """At k = 1 of 8; at k = 8 it is of little use, as documented."""
    random, covered = np.random.default_rng(1), np.zeros(8)
    for _ in range(300):
        found = expected_best(random.random(8), resamples=300)
        covered += [one.low <= one.k / (one.k + 1) <= one.high for one in found]
    assert 0.85 < covered[0] / 300 < 0.95
    assert covered[-1] < covered[0]


def test_one_draw_has_no_interval_and_none_is_a_mistake() -> None:
    (one,) = expected_best([0.4])
    assert (one.k, one.mean) == (1, 0.4)
    assert isnan(one.low)
    assert isnan(one.high)
    assert [(one.low, one.high) for one in expected_best([0.4, 0.4])] == [(0.4, 0.4)] * 2
    with pytest.raises(ValueError, match="no scores"):
        expected_best([])
