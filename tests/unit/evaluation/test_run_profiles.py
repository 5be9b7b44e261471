"""Probability of improvement and performance profiles: by hand, by brute force over all pairs and all resamples."""

import itertools

import numpy as np
import pytest

from tepo.evaluation.statistics.run_profiles import Improvement, performance_profile, probability_of_improvement

X = np.array([[0.5, 0.9], [0.7, 0.1]])  # two runs on two tasks
Y = np.array([[0.6, 0.1], [0.5, 0.2], [0.1, 0.3]])


def test_probability_of_improvement_by_hand() -> None:
    """First task: 0.5 against 0.6, 0.5, 0.1 is 0 + 1/2 + 1, 0.7 is 3; 4.5 of 6. Second: 0.9 is 3, 0.1 is 1/2 + 0 + 0;
    3.5 of 6. The mean over tasks is 8 / 12."""
    assert probability_of_improvement(X, Y).value == pytest.approx(8 / 12)
    assert probability_of_improvement(Y, X).value == pytest.approx(4 / 12)
    assert probability_of_improvement(X, X).value == pytest.approx(0.5)


def test_a_task_counts_once_however_its_scores_are_scaled() -> None:
    random = np.random.default_rng(0)
    x, y = random.random((5, 3)), random.random((4, 3))
    scale = np.array([1.0, 0.01, 1e-6])
    assert probability_of_improvement(x, y) == probability_of_improvement(x * scale, y * scale)


def test_the_interval_is_that_of_all_resamples_of_whole_runs() -> None:
    """n - 1 of n runs are drawn of each row, every run with all of its tasks: 9 draws of two of three, twice."""
    x, y = np.array([[0.5, 0.5], [0.6, 0.6], [0.9, 0.2]]), np.array([[0.4, 0.55], [0.55, 0.3], [0.7, 0.7]])

    def value(x: np.ndarray, y: np.ndarray) -> float:
        pairs = [(a, b) for m in range(2) for a in x[:, m] for b in y[:, m]]
        return float(np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs]))

    two_of_three = [list(two) for two in itertools.product(range(3), repeat=2)]
    every = [value(x[i], y[j]) for i in two_of_three for j in two_of_three]
    one = probability_of_improvement(x, y, draws=100_000)
    assert one.value == pytest.approx(value(x, y))
    assert (one.low, one.high) == pytest.approx(tuple(np.quantile(every, [0.025, 0.975])), abs=0.01)


def test_runs_that_do_not_overlap_and_a_single_run() -> None:
    assert probability_of_improvement(Y + 1, Y) == Improvement(1.0, 1.0, 1.0)
    alone = probability_of_improvement(X[:1], Y)
    assert alone.value == pytest.approx((1.5 + 3) / 6)
    assert np.isnan([alone.low, alone.high]).all()


def test_a_profile_by_hand() -> None:
    """Scores 0.5, 0.9, 0.7, 0.1: all above 0, three above 0.1 itself, two above 0.5 itself, none above 0.9."""
    profile = performance_profile(X, np.array([0.0, 0.1, 0.5, 0.6, 0.9]))
    assert profile.share == pytest.approx([1.0, 0.75, 0.5, 0.5, 0.0])
    assert (np.diff(performance_profile(Y, np.linspace(0, 1, 50)).share) <= 0).all()


def test_bands_of_a_profile() -> None:
    """Of two runs one is drawn: run 1 has both scores above 0.3, run 2 one of two. A single run has no band."""
    profile = performance_profile(X, np.array([0.3, 0.95]))
    assert profile.low == pytest.approx([0.5, 0.0])
    assert profile.high == pytest.approx([1.0, 0.0])
    assert np.isnan(performance_profile(X[:1], np.array([0.3])).low).all()
    many = performance_profile(np.random.default_rng(1).random((400, 1)), np.array([0.5]))
    half = 1.96 * (0.25 / 400) ** 0.5  # of a share of independent runs
    assert (many.high - many.low)[0] / 2 == pytest.approx(half, rel=0.1)
