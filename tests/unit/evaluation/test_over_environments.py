"""A difference over environments: for these, and for a new one."""

import math

import numpy as np
import pytest
from scipy import stats

from tepo.evaluation.statistics.over_environments import over_environments

BASES, SEEDS, PROBLEMS = 5, 3, 40


def cells(by_run: np.ndarray) -> list[dict[str, np.ndarray]]:
    """by_run [B, S], alike on every problem, so that problems add nothing."""
    return [{"one": np.repeat(row[:, None], PROBLEMS, axis=1)} for row in by_run]


def test_without_noise_of_problems_these_are_a_pooled_t_and_a_new_one_is_the_t_of_the_bases() -> None:
    by_run = np.random.default_rng(1).normal(0.03, 0.02, (BASES, SEEDS)) + np.linspace(-0.04, 0.04, BASES)[:, None]
    found = over_environments(cells(by_run))
    error = (by_run.var(axis=1, ddof=1).mean() / (BASES * SEEDS)) ** 0.5
    half = stats.t.ppf(0.975, BASES * (SEEDS - 1)) * error
    assert (found.these.low, found.these.high) == pytest.approx((by_run.mean() - half, by_run.mean() + half))
    of_bases = stats.ttest_1samp(by_run.mean(axis=1), 0)
    assert found.new.p == pytest.approx(of_bases.pvalue)
    assert found.new.error == pytest.approx(by_run.mean(axis=1).std(ddof=1) / BASES**0.5)
    between = by_run.mean(axis=1).var(ddof=1) - by_run.var(axis=1, ddof=1).mean() / SEEDS
    assert found.between == pytest.approx(between**0.5)


def test_bases_that_differ_no_more_than_seeds_make_them_have_no_spread_of_their_own() -> None:
    by_run = np.tile([-0.02, 0.0, 0.02], (BASES, 1))
    assert over_environments(cells(by_run)).between == 0


def test_one_seed_or_one_base_gives_no_interval_where_it_is_needed() -> None:
    one_seed = over_environments(cells(np.linspace(0, 0.1, BASES)[:, None]))
    assert math.isnan(one_seed.these.low)
    assert not math.isnan(one_seed.new.low)
    one_base = over_environments(cells(np.array([[0.01, 0.02, 0.04]])))
    assert math.isnan(one_base.new.low)
    assert not math.isnan(one_base.these.low)


@pytest.mark.parametrize(("spread", "truth"), [(0.0, "these"), (0.03, "these"), (0.03, "new")])
def test_the_intervals_hold_the_truth_as_often_as_they_say(spread: float, truth: str) -> None:
    """Truth of these: the mean of the drawn bases; of a new one: 0. Seeds and problems vary too."""
    random, held, trials = np.random.default_rng(7), 0, 300
    for _ in range(trials):
        bases = random.normal(0, spread, BASES)
        by_run = bases[:, None] + random.normal(0, 0.02, (BASES, SEEDS))
        x = by_run[..., None] + random.normal(0, 0.05, PROBLEMS) + random.normal(0, 0.1, (BASES, SEEDS, PROBLEMS))
        found = over_environments([{"one": base} for base in x], draws=100)
        one, aim = (found.these, bases.mean()) if truth == "these" else (found.new, 0.0)
        held += one.low <= aim <= one.high
    assert 0.92 <= held / trials <= 0.995
