import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tepo.formula.formula import Bounds
from tepo.objectives import load_objective
from tepo.policy.model.shapes import Shape
from tepo.training.metrics.step_metrics import PolicyDrift
from tepo.training.metrics.throughput import Size
from tepo.training.rollout.group_stats import Rollout
from tepo.training.rollout_batch import Group
from tests.support.models import tiny_model
from tests.support.rollouts import graded, rollout
from tests.unit.objectives.flat import by_hand

LOG2 = math.log(2)


def moved(clip: Bounds | None, cut: list[list[int]], exact: bool = False) -> dict[str, float]:
    """Of ratios 1/2, 1 and 2 in two responses, the first token alone in one."""
    batch, found = by_hand([0.5, 1.0, 2.0], [1.0, -1.0, 2.0], [1, 2]), PolicyDrift()
    batch = replace(batch, logprobs=batch.logprobs.detach(), full_kl=torch.tensor([0.1, 0.2, 0.6]))
    for part in cut:
        own = batch.select(part)
        found.add(own, own.logprobs - own.old_logprobs)
    return found.metrics(clip, None, exact=exact)


@pytest.mark.parametrize("cut", [[[0, 1]], [[1], [], [0]]])
def test_values_by_hand(cut: list[list[int]]) -> None:
    """d is -log 2, 0, log 2. k1: the mean of -d. k3: of exp d - 1 - d, (1/2 - 1 + log 2) + 0 + (2 - 1 - log 2) over 3.
    Responses: -log 2 and log 2 / 2, which lie 3/4 log 2 from their mean."""
    expected = {
        "actor/realised_kl_k1": 0.0,
        "actor/realised_kl_k3": 0.5 / 3,
        "actor/log_ratio_sd": LOG2 * math.sqrt(2 / 3),
        "actor/sequence_log_ratio_sd": 0.75 * LOG2,
    }
    assert moved(None, cut) == pytest.approx(expected, abs=1e-7)
    found = moved(Bounds("sequence", {"low": 0.2, "high": 0.28}), cut, exact=True)
    distances = {"actor/clip_low_over_sd": 0.2 / (0.75 * LOG2), "actor/clip_high_over_sd": 0.28 / (0.75 * LOG2)}
    assert found == pytest.approx(expected | distances | {"actor/realised_kl_reverse": 0.3}, abs=1e-6)
    token = moved(Bounds("token", {"high": 0.28}), cut)
    assert token["actor/clip_high_over_sd"] == pytest.approx(0.28 / (LOG2 * math.sqrt(2 / 3)))
    assert "actor/clip_low_over_sd" not in token


@pytest.mark.parametrize(
    ("name", "changes", "clip"),
    [
        ("grpo_dapo", {}, ("token", {"low": 0.2, "high": 0.28})),
        ("cispo", {}, ("token", {"high": 0.28})),
        ("tepo", {"J": "min(w, clip(w, 1 - low, 1 + high))*A"}, ("sequence", {"high": 0.28})),
        ("gmpo", {}, None),  # its ratio is the response's, its bounds each token's
        ("grpo_s", {}, None),  # an arithmetic mean
    ],
)
def test_what_a_clip_bounds(name: str, changes: dict[str, str], clip: tuple[str, dict[str, float]] | None) -> None:
    found = load_objective(name, changes).clip
    assert (found and (found.of, found.bounds)) == (clip and (clip[0], pytest.approx(clip[1])))


def test_a_rollout_counts_all_that_was_consumed() -> None:
    consumed = [
        graded([1] * 4, [2] * 4, number=0),
        first := graded([1, 0, 0, 0], [1, 2, 3, 4], number=1, cut=1),
        graded([0] * 4, [5] * 4, number=2, cut=4, timeouts=2),
        graded([0] * 4, [1] * 4, number=3),
        last := graded([1, 1, 1, 0], [9, 1, 1, 1], number=4, timeouts=1),
    ]
    found = Rollout([first, last], [one.without_logprobs() for one in consumed], left_over=7)
    assert found.metrics() == pytest.approx(
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


def test_operations_are_those_of_the_products_of_a_model() -> None:
    """Against torch's own count, of a model whose attention does the other half too."""
    model, length = tiny_model(attn_implementation="eager"), 40
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(torch.zeros(1, length, dtype=torch.long))
    shape = Shape.of_config(model.config)
    half = 2 * shape.layers * shape.heads * shape.head_dim * length**2
    assert shape.forward_operations(length, length**2) + half == counted.get_total_flops()


def test_a_prompt_counts_once_a_group() -> None:
    found = Size.of(rollout(graded([0, 0], [2, 4], prompt=3), graded([0, 0], [1, 7], prompt=5)))
    assert found.tokens == 3 + 6 + 5 + 8
    # a response's token attends to the prompt and what came before it; the prompt to itself, once
    pairs = 3**2 + (5**2 - 3**2) + (7**2 - 3**2) + 5**2 + (6**2 - 5**2) + (12**2 - 5**2)
    assert found.pairs == pairs
