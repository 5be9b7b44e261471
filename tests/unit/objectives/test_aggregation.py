"""Denominators by hand, overlong filtering, the sampler correction, and what verl's micro-batches do."""

import math

import pytest
import torch

from tepo.common.errors import UserError
from tepo.objectives import load_objective
from tests.invariants.rows import changed
from tests.unit.objectives.flat import by_hand, coefficients, tensor

LENGTHS = [1, 3, 0, 2]
GROUPS = torch.tensor([4, 4, 4, 9])


def scales(aggregation, **more) -> list[float]:
    objective = load_objective(
        {
            "advantage": "group_normalized",
            "ratio": "token",
            "surrogate": "ppo_clip",
            "aggregation": aggregation,
            **more.pop("axes", {}),
        }
    )
    return objective.prepare(by_hand([1.0] * 6, [1.0] * 6, LENGTHS, group_ids=GROUPS, **more)).scale.tolist()


def test_denominators():
    """Six tokens in three responses; the empty one counts in neither."""
    assert scales("token_mean") == pytest.approx([1 / 6] * 6)
    assert scales("seq_mean_token_mean") == pytest.approx([1 / 3, 1 / 9, 1 / 9, 1 / 9, 1 / 6, 1 / 6])
    assert scales("seq_mean_token_sum") == pytest.approx([1 / 3] * 6)
    assert scales({"kind": "seq_mean_token_sum_norm", "constant": 7}) == pytest.approx([1 / 21] * 6)
    assert scales("seq_mean_token_sum_norm", max_new_tokens=5) == pytest.approx([1 / 15] * 6)


def test_group_means():
    """Reading A9: a mean in each group (4 tokens in 2 responses, 2 tokens in 1), then over the 2 groups."""
    assert scales({"kind": "token_mean", "over": "group"}) == pytest.approx([1 / 8] * 4 + [1 / 4] * 2)
    assert scales({"kind": "seq_mean_token_mean", "over": "group"}) == pytest.approx(
        [1 / 4, 1 / 12, 1 / 12, 1 / 12, 1 / 4, 1 / 4]
    )


def test_filtered_responses_leave_every_denominator():
    filtered = {"finished": torch.tensor([True, False, True, True]), "axes": {"overlong": "filter"}}
    assert scales("token_mean", **filtered) == pytest.approx([1 / 3, 0, 0, 0, 1 / 3, 1 / 3])
    assert scales("seq_mean_token_mean", **filtered) == pytest.approx([1 / 2, 0, 0, 0, 1 / 4, 1 / 4])


def test_filtering_needs_the_flags():
    with pytest.raises(UserError, match="finished"):
        scales("token_mean", axes={"overlong": "filter"})


def test_filtered_metrics_count_the_rest():
    objective = load_objective(changed("grpo_dapo", {"overlong": {"kind": "filter"}}))
    batch = by_hand([2.0, 3.0, 3.0, 1.0], [1.0] * 4, [1, 2, 1], finished=torch.tensor([True, False, True]))
    metrics = objective.loss(batch, objective.prepare(batch)).metrics.means()
    assert metrics["actor/ratio_mean"] == pytest.approx(1.5)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(0.5)


def test_length_limit_is_named_when_missing():
    with pytest.raises(UserError, match="max_new_tokens"):
        scales("seq_mean_token_sum_norm")


def test_verl_micro_batches_of_one_turn_token_mean_into_sequence_mean():
    """peers.md 3.8: the formula per micro-batch, weighted by sequences, is 1/(B T_i) at micro-batch size one."""
    objective = load_objective(changed("grpo_dapo", {"aggregation": {"over": "micro_batch"}}))
    batch = by_hand([1.0] * 6, [1.0] * 6, LENGTHS)
    plan = objective.prepare(batch)
    loss = sum(objective.loss(batch.select([i]), plan.select([i])).loss for i in range(4))
    (gradient,) = torch.autograd.grad(loss, batch.logprobs)
    assert (-gradient).tolist() == pytest.approx([1 / 3, 1 / 9, 1 / 9, 1 / 9, 1 / 6, 1 / 6])


def test_truncated_importance_sampling():
    """min(pi_old / pi_sampler, 2) times the policy term, after the clip; by sequence the product over the response."""
    gaps = [1.5, 4.0, 0.5]
    batch = by_hand([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [2, 1], sampler_logprobs=-1 - torch.log(tensor(*gaps)))
    token = load_objective(changed("grpo_dapo", {"correction": {"kind": "truncated"}}))
    assert coefficients(token, batch) == pytest.approx([1.5, 2.0, 0.5])
    sequence = load_objective(
        changed("grpo_dapo", {"correction": {"kind": "truncated", "level": "sequence", "cap": 10.0}})
    )
    assert coefficients(sequence, batch) == pytest.approx([6.0, 6.0, 0.5])
    assert token.needs.sampler_logprobs


def test_correction_leaves_penalties_alone():
    axes = {"correction": {"kind": "truncated"}, "penalty": {"kind": "kl", "estimator": "k1", "coefficient": 1.0}}
    objective = load_objective(changed("grpo_dapo", axes))
    batch = by_hand([1.0], [1.0], sampler_logprobs=tensor(-1 - math.log(1.5)))
    assert coefficients(objective, batch) == pytest.approx([1.5 - 1.0])
