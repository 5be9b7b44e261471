"""Entropy at equal reward, on curves whose answer is known."""

import numpy as np
import pytest

from tepo.evaluation.statistics.entropy_at_equal_reward import entropy_gap


def run(speed: float, extra: float, steps: int = 40) -> np.ndarray:
    """Reward rises in a straight line; entropy is a function of the reward, plus `extra`."""
    reward = 0.3 + speed * np.arange(steps)
    return np.stack([reward, 0.5 - 0.4 * reward + extra], axis=-1)


@pytest.mark.parametrize("speed", [0.01, 0.02])
def test_a_faster_run_has_no_less_entropy_at_the_same_reward(speed: float) -> None:
    assert entropy_gap(run(speed, 0.0), run(0.01, 0.0)) == pytest.approx(0.0, abs=1e-9)
    assert entropy_gap(run(speed, 0.07), run(0.01, 0.0)) == pytest.approx(0.07)


def test_runs_without_a_common_reward_say_nothing() -> None:
    high = run(0.01, 0.0)
    high[:, 0] += 5
    assert np.isnan(entropy_gap(run(0.01, 0.0), high))


def test_a_reward_that_falls_again_counts_where_it_was_first_reached() -> None:
    falling = run(0.01, 0.0)
    falling[30:] = falling[29] - [[0.2, 0.4]]
    assert entropy_gap(falling, run(0.01, 0.0)) == pytest.approx(0.0, abs=5e-3)
