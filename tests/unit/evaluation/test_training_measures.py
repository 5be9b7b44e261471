import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tepo.evaluation.statistics.training_measures import (
    censored,
    entropy_gap,
    estimate_gaps,
    late_mean,
    log_mean,
    steps_to,
)


def rows(values: list[float | None], metric: str = "m") -> list[dict[str, Any]]:
    """A step for each value; one without leaves the metric out."""
    steps = enumerate(values, start=1)
    return [{"training/global_step": step} | ({} if value is None else {metric: value}) for step, value in steps]


def test_late_is_the_last_quarter_of_what_is_there() -> None:
    assert late_mean(rows([9.0] * 6 + [1.0, 3.0]), "m") == 2.0
    assert late_mean(rows([9.0] * 6 + [None, 3.0]), "m") == 3.0
    assert math.isnan(late_mean(rows([9.0] * 6 + [None, None]), "m"))


def test_logarithm_of_the_mean_of_what_is_there() -> None:
    assert log_mean(rows([1.0, None, 3.0]), "m") == pytest.approx(math.log(2))
    assert math.isnan(log_mean(rows([None]), "m"))
    assert math.isnan(log_mean(rows([0.0, 0.0]), "m"))


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
    "all arrive": ((50.0, 60.0), (40.0, 30.0), ""),
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


def run(speed: float, extra: float = 0.0) -> np.ndarray:
    """Reward rises in a straight line; entropy is a function of the reward, plus `extra`."""
    reward = 0.3 + speed * np.arange(40)
    return np.stack([reward, 0.5 - 0.4 * reward + extra], axis=-1)


@pytest.mark.parametrize("speed", [0.01, 0.02])
def test_a_faster_run_has_no_less_entropy_at_the_same_reward(speed: float) -> None:
    assert entropy_gap(run(speed), run(0.01)) == pytest.approx(0.0, abs=1e-9)
    assert entropy_gap(run(speed, 0.07), run(0.01)) == pytest.approx(0.07)


def test_a_reward_that_falls_again_counts_where_it_was_first_reached() -> None:
    falling = run(0.01)
    falling[30:] = falling[29] - [[0.2, 0.4]]
    assert entropy_gap(falling, run(0.01)) == pytest.approx(0.0, abs=5e-3)
