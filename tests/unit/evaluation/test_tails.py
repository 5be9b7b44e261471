import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tepo.evaluation.statistics.intervals import Tails, estimate


@given(st.floats(2, 500), st.integers(1, 20), st.floats(0, 1), st.floats(0.0001, 0.9999))
def test_the_quantile_is_the_inverse_of_the_probability(
    problems: float, seeds: int, share: float, probability: float
) -> None:
    tails = Tails(problems, seeds, share)
    assert tails.below(tails.quantile(probability)) == pytest.approx(probability, rel=1e-4)
    assert tails.quantile(1 - probability) == pytest.approx(-tails.quantile(probability), rel=1e-5, abs=1e-5)


def test_one_part_alone_is_student_s_t() -> None:
    assert Tails(7.0).quantile(0.975) == pytest.approx(stats.t.ppf(0.975, 7))
    assert Tails(100.0, 2, 1.0).quantile(0.975) == pytest.approx(stats.t.ppf(0.975, 2))
    assert Tails(np.array([7.0, 100.0]), 2, np.array([0.0, 1.0])).quantile(0.975) == pytest.approx(
        [stats.t.ppf(0.975, 7), stats.t.ppf(0.975, 2)]
    )


@pytest.mark.parametrize(("seeds", "luck"), [(3, 0.0), (3, 0.1), (3, 0.3), (3, 2.0), (5, 0.3)])
def test_equal_rows_differ_in_five_of_a_hundred_studies_at_most(seeds: int, luck: float) -> None:
    """Also at the level of a family of eight, and wherever the luck of training lies beside the noise of problems:
    Satterthwaite's degrees of freedom gave up to 7% with three seeds, and 2.5% of the comparisons at 5% / 8."""
    random, studies = np.random.default_rng(seeds), 2000
    noise = random.standard_normal((studies, seeds, 50)) + luck * random.standard_normal((studies, seeds, 1))
    p = np.array([estimate({"b": x}).p for x in noise])
    assert (p < 0.05).mean() < 0.05 + 2 * (0.05 * 0.95 / studies) ** 0.5
    assert (p < 0.05 / 8).mean() < 0.05 / 8 + 2 * (0.05 / 8 / studies) ** 0.5
