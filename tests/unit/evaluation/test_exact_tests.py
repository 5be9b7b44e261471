"""Exact tests from runs: by hand, against scipy's permutation test, and their level under luck that is the same in both
rows."""

import numpy as np
import pytest
from scipy import stats

from tepo.evaluation.statistics.exact_tests import (
    MOST,
    exchange_p,
    sign_flip_p,
    smallest_exchange_p,
    smallest_sign_flip_p,
)


def test_sign_flips_by_hand() -> None:
    """Sums of ±1 ±2 ±4 are -7, -5, -3, -1, 1, 3, 5, 7. Seen 1 + 2 + 4 = 7 and, with the first negative, 5."""
    assert sign_flip_p(np.array([1.0, 2.0, 4.0])) == 2 / 8
    assert sign_flip_p(np.array([-1.0, 2.0, 4.0])) == 4 / 8
    assert sign_flip_p(np.array([-1.0, 2.0, 4.0]), alternative="greater") == 2 / 8
    assert sign_flip_p(np.array([-1.0, 2.0, 4.0]), alternative="less") == 7 / 8
    assert sign_flip_p(np.array([3.0, 4.0, 6.0]), about=2.0) == 2 / 8  # 1, 2, 4 above it
    assert sign_flip_p(np.zeros(3)) == 1.0


def test_runs_exchanged_by_hand() -> None:
    """Of 1, 2, 4, 8 two go to the first row: sums 3, 5, 6, 9, 10, 12 about 7.5. Seen 4 + 8: 12 and 3 are as far off;
    seen 2 + 8: 10, 12, 3 and 5."""
    assert exchange_p(np.array([4.0, 8.0]), np.array([1.0, 2.0])) == pytest.approx(2 / 6)
    assert exchange_p(np.array([2.0, 8.0]), np.array([1.0, 4.0])) == pytest.approx(4 / 6)
    assert exchange_p(np.array([2.0, 8.0]), np.array([1.0, 4.0]), alternative="greater") == pytest.approx(2 / 6)
    assert exchange_p(np.array([2.0, 8.0]), np.array([1.0, 4.0]), alternative="less") == pytest.approx(5 / 6)
    assert exchange_p(np.array([7.0, 11.0]), np.array([1.0, 2.0]), about=3.0) == pytest.approx(2 / 6)
    assert exchange_p(np.array([9.0]), np.array([1.0, 2.0, 4.0])) == pytest.approx(1 / 4)  # unequal numbers of runs


@pytest.mark.parametrize("alternative", ["two-sided", "less", "greater"])
def test_both_are_scipys_permutation_tests(alternative: str) -> None:
    random = np.random.default_rng(1)
    a, b = random.normal(0.3, 1, 5), random.exponential(1, 4)

    def mean_difference(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        return np.mean(x, axis=axis) - np.mean(y, axis=axis)

    drawn = {"alternative": alternative, "n_resamples": np.inf}
    dealt = stats.permutation_test((a, b), mean_difference, permutation_type="independent", **drawn)
    flipped = stats.permutation_test((a,), np.mean, permutation_type="samples", **drawn)
    if alternative != "two-sided":  # scipy doubles the smaller side there
        assert exchange_p(a, b, alternative=alternative) == pytest.approx(dealt.pvalue)  # type: ignore[arg-type]
    assert sign_flip_p(a, alternative=alternative) == pytest.approx(flipped.pvalue)  # type: ignore[arg-type]


def test_the_smallest_p_is_that_of_rows_that_do_not_overlap() -> None:
    eight = np.arange(1.0, 9)
    assert sign_flip_p(eight) == smallest_sign_flip_p(8) == 2 / 256
    assert exchange_p(eight + 10, eight) == pytest.approx(smallest_exchange_p(8, 8))
    assert smallest_exchange_p(8, 8) == 2 / 12870


def test_of_too_many_arrangements_a_fixed_sample_is_drawn() -> None:
    """Beside the normal approximation of the sum, which 40 seeds are enough for."""
    random = np.random.default_rng(2)
    a, b = random.normal(0.3, 1, 40), random.normal(0, 1, 40)
    p = sign_flip_p(a), exchange_p(a, b)
    assert p == (sign_flip_p(a), exchange_p(a, b))
    centred = np.concatenate([a, b]) - np.concatenate([a, b]).mean()
    normal = [
        2 * stats.norm.sf(abs(a.sum()) / np.sqrt((a**2).sum())),
        2 * stats.norm.sf(abs(centred[:40].sum()) / np.sqrt(20 * centred.var(ddof=1))),
    ]
    assert p == pytest.approx(normal, abs=0.01)
    assert (
        sign_flip_p(np.ones(40)) == smallest_sign_flip_p(40) / 2 == 1 / MOST
    )  # its mirror image is not among those drawn


def test_equal_runs_however_skewed_differ_in_five_of_a_hundred_studies() -> None:
    random, studies = np.random.default_rng(3), 4000
    a, b = (-random.exponential(0.05, (studies, 8)) for _ in range(2))
    limit = 0.05 + 2 * (0.05 * 0.95 / studies) ** 0.5
    assert 0.03 < np.mean(sign_flip_p(a - b) < 0.05) < limit
    assert 0.03 < np.mean([exchange_p(*pair) < 0.05 for pair in zip(a, b, strict=True)]) < limit
