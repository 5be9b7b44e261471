from dataclasses import replace

import numpy as np
import pytest

from tepo.training.rollout.group_stats import Rollout
from tepo.training.rollout_batch import Group
from tests.support.rollouts import graded


def test_a_rollout_counts_all_that_was_consumed() -> None:
    first, last = (
        graded([1, 0, 0, 0], [1, 2, 3, 4], number=1, cut=1),
        graded([1, 1, 1, 0], [9, 1, 1, 1], number=4, timeouts=1),
    )
    dropped = [
        graded([1] * 4, [2] * 4, number=0),
        graded([0] * 4, [5] * 4, number=2, cut=4, timeouts=2),
        graded([0] * 4, [1] * 4, number=3),
    ]
    consumed = sorted([first, last, *dropped], key=lambda group: group.prompt.number)
    rollout = Rollout([first, last], [one.without_logprobs() for one in consumed], left_over=7)
    assert rollout.metrics() == pytest.approx(
        {
            "critic/score/mean": (1 + 1 / 4 + 3 / 4) / 5,
            "critic/score/best@4": 3 / 5,
            "critic/score/best@2": (1 + (1 - 3 / 6) + 1) / 5,  # of the 6 pairs, 3 hold the one right answer of `first`
            "critic/rewards/kept_mean": (1 / 4 + 3 / 4) / 2,
            "response_length/mean": (8 + 10 + 20 + 4 + 12) / 20,
            "response_length/max": 9,
            "response_length/clip_ratio": 5 / 20,
            "rollout/prompts": 5,
            "rollout/responses": 20,
            "rollout/groups_kept": 2,
            "rollout/groups_all_right": 1,
            "rollout/groups_all_wrong": 2,
            "perf/left_over": 7,
            "grader/timeouts": 3,
            "perf/sampled_tokens": 54,
        }
    )


def test_rewards_of_ones_own_and_noise_are_told_apart() -> None:
    """Two groups of two: the first response of each is flipped. Named rewards are those that are trained on."""
    plain = [graded([1, 0.25], [1, 1], number=number) for number in range(2)]
    noisy = [
        replace(
            one,
            rewards=np.array([0, 0.25], dtype=np.float32),
            scores=one.rewards,
            named=np.array([[0, 0], [0.25, 1]], dtype=np.float32),
            failures=("own.py:1: returned NaN",) if number else (),
        )
        for number, one in enumerate(plain)
    ]
    metrics = Rollout(noisy, noisy, names=("a", "b")).metrics()
    assert metrics["critic/score/mean"] == (1 + 0.25) / 2
    assert metrics["critic/score/best@2"] == 1
    assert metrics["critic/rewards/mean"] == metrics["critic/rewards/kept_mean"] == 0.125
    assert (metrics["rollout/flipped"], metrics["reward/failed"]) == (2, 1)
    assert (metrics["reward/a/mean"], metrics["reward/b/mean"]) == (0.125, 0.5)
    joined = Group.joined(noisy)
    assert joined.true_rewards == [1, 0.25, 1, 0.25]
    assert (joined.rewards.tolist(), joined.named.tolist()) == ([0, 0.25] * 2, [[0, 0], [0.25, 1]] * 2)
    assert joined.failures == noisy[1].failures


@pytest.mark.parametrize(("size", "expected"), [(6, [6, 3]), (2, [2]), (1, []), (16, [16, 8, 4, 2])])
def test_the_best_of_k_is_for_the_group_and_its_halves(size: int, expected: list[int]) -> None:
    drawn = graded([1] + [0] * (size - 1))
    names = [name for name in Rollout([drawn], [drawn]).metrics() if "best@" in name]
    assert names == [f"critic/score/best@{k}" for k in expected]
