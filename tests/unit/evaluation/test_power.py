import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tepo.evaluation.statistics.intervals import estimate
from tepo.evaluation.statistics.over_environments import over_environments
from tepo.evaluation.statistics.power import POWER, Spread, found_from, pooled, seeds_needed, smallest, spread_of

SPREAD = Spread(0.01**2, np.array([0.02, 0.01]), np.array([0.06, 0.09]), np.array([0.6, 0.4]), np.array([60, 40]))
LEVEL = 0.05 / 7


def simulated(spread: Spread, seeds: int, difference: float, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Differences x [S, P] of one study under the model, whose weighted mean over benchmarks is `difference`."""
    luck = random.normal(difference, spread.seed**0.5, (seeds, 1))
    return {
        str(n): luck
        + random.normal(0, problem**0.5, (1, int(count)))
        + random.normal(0, rest**0.5, (seeds, int(count)))
        for n, (problem, rest, count) in enumerate(zip(spread.problem, spread.rest, spread.problems, strict=True))
    }


@pytest.mark.disaster
@pytest.mark.parametrize(("seeds", "luck"), [(3, 0.0), (3, 0.03), (5, 0.01), (8, 0.01), (12, 0.03)])
def test_the_promised_power_is_met_within_five_points(seeds: int, luck: float) -> None:
    spread = replace(SPREAD, seed=luck**2)
    weights = {str(index): weight for index, weight in enumerate(SPREAD.weights)}
    wanted = smallest(found_from(spread, seeds, LEVEL))
    random, studies = np.random.default_rng(seeds), 600
    found = [
        one.p <= LEVEL and one.mean > 0
        for one in (estimate(simulated(spread, seeds, wanted, random), weights) for _ in range(studies))
    ]
    assert np.mean(found) == pytest.approx(POWER, abs=0.05)


@pytest.mark.disaster
def test_variances_are_those_behind_the_differences() -> None:
    """Means over many pilots: every component is estimated without bias where it is far from 0."""
    random, wide = np.random.default_rng(1), replace(SPREAD, seed=0.09)
    weights = {"0": 3.0, "1": 2.0}
    found = pooled([one for _ in range(400) if (one := spread_of(simulated(wide, 4, 0.1, random), weights))])
    assert found.seed == pytest.approx(wide.seed, rel=0.15)
    np.testing.assert_allclose(found.problem, wide.problem, rtol=0.15)
    np.testing.assert_allclose(found.rest, wide.rest, rtol=0.05)
    np.testing.assert_allclose(found.weights, [0.6, 0.4])
    np.testing.assert_allclose(found.problems, [60, 40])


def test_a_plan_takes_the_upper_end_of_the_variance_between_seeds() -> None:
    """By hand: of two degrees of freedom, so three seeds, chi-squared is below −2 log 0.85 = 0.325 in 15% of cases. The
    variance of a seed's mean, its own 0.0001 and that of its samples 0.6² x 0.06 / 60 + 0.4² x 0.09 / 40 = 0.00072, is
    then 2 / 0.325 times as large. A variance that comes out at 0 or below does not promise that there is none."""
    noise = 0.36 * 0.06 / 60 + 0.16 * 0.09 / 40
    factor = 2 / (-2 * np.log(0.85))
    assert SPREAD.cautious(2).seed == pytest.approx((1e-4 + noise) * factor - noise)
    assert replace(SPREAD, seed=-1e-4).cautious(2).seed == pytest.approx(noise * (factor - 1))
    assert smallest(found_from(SPREAD.cautious(2), 8, LEVEL)) > smallest(found_from(SPREAD, 8, LEVEL))


@pytest.mark.parametrize("shape", [(1, 20), (3, 9), (3, 1)])
def test_one_seed_or_too_few_problems_say_nothing(shape: tuple[int, int]) -> None:
    assert spread_of({"b": np.random.default_rng(0).random(shape)}, None) is None


def test_seeds_needed_are_the_fewest() -> None:
    wanted = 0.07
    seeds = seeds_needed(SPREAD, wanted, LEVEL)
    assert seeds is not None
    assert smallest(found_from(SPREAD, seeds, LEVEL)) <= wanted < smallest(found_from(SPREAD, seeds - 1, LEVEL))
    assert seeds_needed(SPREAD, 0.001, LEVEL) is None  # the problems alone spread more


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
