import math

import numpy as np
import pytest
from scipy import stats

from tepo.evaluation.statistics.over_environments import over_environments

BASES, SEEDS, PROBLEMS = 5, 3, 40


def cells(by_run: np.ndarray) -> list[dict[str, np.ndarray]]:
    """by_run [B, S], alike on every problem, so that problems add nothing."""
    return [{"one": np.repeat(row[:, None], PROBLEMS, axis=1)} for row in by_run]


def test_without_noise_of_problems_these_are_a_pooled_t_and_their_average_is_the_t_of_the_bases() -> None:
    by_run = np.random.default_rng(1).normal(0.03, 0.02, (BASES, SEEDS)) + np.linspace(-0.04, 0.04, BASES)[:, None]
    found = over_environments(cells(by_run))
    error = (by_run.var(axis=1, ddof=1).mean() / (BASES * SEEDS)) ** 0.5
    half = stats.t.ppf(0.975, BASES * (SEEDS - 1)) * error
    assert (found.these.low, found.these.high) == pytest.approx((by_run.mean() - half, by_run.mean() + half))
    of_bases = stats.ttest_1samp(by_run.mean(axis=1), 0)
    assert found.average.p == pytest.approx(of_bases.pvalue)
    assert found.average.error == pytest.approx(by_run.mean(axis=1).std(ddof=1) / BASES**0.5)
    between = by_run.mean(axis=1).var(ddof=1) - by_run.var(axis=1, ddof=1).mean() / SEEDS
    assert found.between == pytest.approx(between**0.5)


def test_one_seed_or_one_base_gives_no_interval_where_it_is_needed() -> None:
    one_seed = over_environments(cells(np.linspace(0, 0.1, BASES)[:, None]))
    assert math.isnan(one_seed.these.low)
    assert not math.isnan(one_seed.average.low)
    one_base = over_environments(cells(np.array([[0.01, 0.02, 0.04]])))
    assert math.isnan(one_base.average.low)
    assert not math.isnan(one_base.these.low)


def test_one_more_base_lies_within_the_spread_of_the_bases_and_the_error_of_their_mean() -> None:
    """By hand: differences of −2, −1, 0, 1 and 2 points have a variance of 2.5, and their mean one of 0.5; t of four
    degrees of freedom is 2.776. The interval of the mean is three times too narrow for one of them."""
    found = over_environments(cells(np.array([[-0.02], [-0.01], [0.0], [0.01], [0.02]])))
    assert found.one == pytest.approx((-0.02776445 * 3**0.5, 0.02776445 * 3**0.5))
    assert (found.average.low, found.average.high) == pytest.approx((-0.02776445 * 0.5**0.5, 0.02776445 * 0.5**0.5))
    assert all(map(math.isnan, over_environments(cells(np.array([[0.01, 0.02]]))).one))


@pytest.mark.parametrize(
    ("spread", "truth", "level"),
    [(0.03, "these", 0.95), (0.03, "average", 0.95), (0.03, "one", 0.95), (0.03, "one, by the average", 0.7)],
)
def test_the_intervals_hold_the_truth_as_often_as_they_say(spread: float, truth: str, level: float) -> None:
    """Truth of these: the mean of the drawn bases; of their average: 0; of one more: what is measured on it. Seeds and
    problems vary too. The interval of the average, which was said to be for a new base, holds one in 70% of cases."""
    random, held, trials = np.random.default_rng(7), 0, 600
    for _ in range(trials):
        bases = random.normal(0, spread, BASES + 1)
        by_run = bases[:, None] + random.normal(0, 0.02, (BASES + 1, SEEDS))
        problems = random.normal(0, 0.05, PROBLEMS)
        x = by_run[..., None] + problems + random.normal(0, 0.1, (BASES + 1, SEEDS, PROBLEMS))
        found = over_environments([{"one": base} for base in x[:BASES]])
        mean = found.these if truth == "these" else found.average
        low, high = found.one if truth == "one" else (mean.low, mean.high)
        aim = {"these": bases[:BASES].mean(), "average": 0.0}.get(truth, x[BASES].mean() - problems.mean())
        held += low <= aim <= high
    assert held / trials == pytest.approx(level, abs=0.035)
