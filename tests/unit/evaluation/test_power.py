import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tepo.evaluation.statistics.intervals import estimate
from tepo.evaluation.statistics.over_environments import over_environments
from tepo.evaluation.statistics.power import POWER, Spread, found_from, pooled, seeds_needed, smallest, spread_of
from tepo.evaluation.statistics.training_measures import (
    censored,
    entropy_gap,
    estimate_gaps,
    late_mean,
    log_mean,
    steps_to,
)

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
    one_base = over_environments(cells(np.array([[0.01, 0.02, 0.04]])))
    assert [math.isnan(part.low) for part in (one_seed.these, one_seed.average)] == [True, False]
    assert [math.isnan(part.low) for part in (one_base.these, one_base.average)] == [False, True]


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


def rows(values: list[float | None], metric: str = "m") -> list[dict[str, Any]]:
    """A step for each value; one without leaves the metric out."""
    steps = enumerate(values, start=1)
    return [{"training/global_step": step} | ({} if value is None else {metric: value}) for step, value in steps]


def test_means_of_what_is_there() -> None:
    """Late is the last quarter of it."""
    for last, mean in (([1.0, 3.0], 2.0), ([None, 3.0], 3.0), ([None, None], math.nan)):
        assert late_mean(rows([9.0] * 6 + last), "m") == pytest.approx(mean, nan_ok=True)
    for values, mean in (([1.0, None, 3.0], math.log(2)), ([None], math.nan), ([0.0, 0.0], math.nan)):
        assert log_mean(rows(values), "m") == pytest.approx(mean, nan_ok=True)


def test_steps_to_a_threshold_are_interpolated_on_the_running_mean() -> None:
    """Validated every second step with 0.0, 0.1, 0.2, ...: the mean of three at its middle step is the line itself."""
    line = rows([None if step % 2 else step / 20 for step in range(1, 21)])
    assert steps_to(line, "m", 0.55, 20) == pytest.approx(11.0)
    assert steps_to(line, "m", 0.0, 20) == 4.0  # the middle of the first window
    assert steps_to(line, "m", 2.0, 20) == math.inf  # never
    assert math.isnan(steps_to(line[:5], "m", 0.1, 5))
    assert steps_to(line[:5], "m", 0.1, 216) == math.inf, "ended early, not even validated three times"


NEVER = math.inf
STEPS = {
    "all of A and one of B": (
        (NEVER, NEVER, NEVER), (40.0, NEVER, 60.0),
        "all 3 runs of A and 1 of 3 runs of B never reach it: no difference in steps can be stated, at least +50 over "
        "the 2 seeds on which B does",
    ),  # 100 - 40 and 100 - 60
    "one of B": (
        (50.0, 60.0), (NEVER, 90.0),
        "1 of 2 runs of B never reach it: no difference in steps can be stated, at most −40",
    ),  # 50 - 100 and 60 - 90
}  # fmt: skip


@pytest.mark.parametrize("case", STEPS)
def test_times_that_no_run_lived_to_see_give_no_difference(case: str) -> None:
    """Of 100 planned steps."""
    a, b, words = STEPS[case]
    assert censored(a, b, 100) == words


def test_over_seeds_it_is_the_t_test() -> None:
    gaps = np.random.default_rng(0).normal(0.02, 0.01, 8)
    found = estimate_gaps([*gaps, math.nan])
    wanted = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((gaps.mean(), wanted.low, wanted.high))
    assert found.p == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    assert math.isnan(estimate_gaps([math.nan] * 3).mean)
    single = estimate_gaps([0.02, math.nan])
    assert single.mean == 0.02
    assert math.isnan(single.p)


def run_of(speed: float, extra: float = 0.0) -> np.ndarray:
    """Reward rises in a straight line; entropy is a function of the reward, plus `extra`."""
    reward = 0.3 + speed * np.arange(40)
    return np.stack([reward, 0.5 - 0.4 * reward + extra], axis=-1)


@pytest.mark.parametrize("speed", [0.01, 0.02])
def test_a_faster_run_has_no_less_entropy_at_the_same_reward(speed: float) -> None:
    assert entropy_gap(run_of(speed), run_of(0.01)) == pytest.approx(0.0, abs=1e-9)
    assert entropy_gap(run_of(speed, 0.07), run_of(0.01)) == pytest.approx(0.07)


def test_a_reward_that_falls_again_counts_where_it_was_first_reached() -> None:
    falling = run_of(0.01)
    falling[30:] = falling[29] - [[0.2, 0.4]]
    assert entropy_gap(falling, run_of(0.01)) == pytest.approx(0.0, abs=5e-3)
