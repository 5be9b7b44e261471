"""Metrics: sums and denominators by hand, adding up over micro-batches and mini-batches."""

import math

import pytest
import torch

from tepo.objectives import load_objective
from tests.invariants.rows import changed
from tests.unit.objectives.flat import by_hand, tensor


def test_values_by_hand():
    objective = load_objective("grpo_dapo")
    batch = by_hand(
        [0.5, 1.0, 2.0], [1.0, -1.0, 2.0], [1, 2], entropies=tensor(0.2, 0.4, 0.6), old_entropies=tensor(0.3, 0.3, 0.3)
    )
    means = objective.loss(batch, objective.prepare(batch)).metrics.means()
    assert means == pytest.approx(
        {
            "actor/ppo_kl": 0.0,  # mean of -log ratio: (log 2 - 0 - log 2)/3
            "actor/entropy": 0.4,
            "actor/entropy_change": 0.1,
            "actor/pg_clipfrac": 1 / 3,
            "actor/ratio_mean": 3.5 / 3,
            "actor/pg_loss": -(0.5 - 1.0 + 2.56) / 3,
            "actor/ratio_max": 2.0,
        },
        abs=1e-7,
    )


def test_kl_entropy_and_weight_metrics():
    tepo, entropy, steer = (load_objective(name) for name in ("tepo", "tepo_max_entropy", "steer"))
    batch = by_hand([0.5, 2.0], [1.0, 1.0], [1, 1], entropies=tensor(0.2, 0.9), old_entropies=tensor(0.3, 0.3))
    means = tepo.loss(batch, tepo.prepare(batch)).metrics.means()
    assert means["actor/kl_tokens"] == pytest.approx(0.5)
    assert means["actor/kl_loss"] == pytest.approx((2 - 0.6931471805599453 - 1) / 2)
    assert entropy.loss(batch, entropy.prepare(batch)).metrics.means()["actor/entropy_loss"] == pytest.approx(0.55)
    plan = steer.prepare(batch)
    assert steer.loss(batch, plan).metrics.means()["actor/token_weight"] == pytest.approx(plan.weight.mean().item())


def test_clip_cov_counts_the_tokens_it_drops():
    """As verl does; the tokens that PPO's clip acts on have another name."""
    objective = load_objective(changed("clip_cov", {"weight": {"fraction": 0.5, "low": -50.0, "high": 50.0}}))
    batch = by_hand([3.0, 1.0, 1.1, 0.9], [1.0, 1.0, -1.0, -1.0], uid=torch.arange(1))
    out = objective.loss(batch, objective.prepare(batch))
    assert (out.tokens["weight"] == 0).sum() == 2
    means = out.metrics.means()
    assert means["actor/pg_clipfrac"] == pytest.approx(0.5)
    assert means["actor/clipped_tokens"] == pytest.approx(0.25)


def test_kl_cov_reports_the_size_of_log_ratios():
    """As verl does: the mean of |d|; of -d elsewhere."""
    batch = by_hand([0.5, 2.0], [1.0, -1.0], uid=torch.arange(1))
    for name, expected in (("kl_cov", 0.6931471805599453), ("grpo_dapo", 0.0)):
        objective = load_objective(name)
        means = objective.loss(batch, objective.prepare(batch)).metrics.means()
        assert means["actor/ppo_kl"] == pytest.approx(expected, abs=1e-7), name


def test_gmpo_counts_log_ratios_outside_both_bounds_by_the_sign_of_the_advantage():
    """As verl does. e^-1 at A > 0 counts, though its gradient flows: only e^1 stops there."""
    objective = load_objective("gmpo")
    ratios = [math.exp(d) for d in (1.0, -1.0, 0.1, 0.2, -1.0, 0.0)]
    batch = by_hand(ratios, [1.0, 1.0, 1.0, 1.0, -1.0, -1.0], [4, 2])
    means = objective.loss(batch, objective.prepare(batch)).metrics.means()
    assert means["actor/pg_clipfrac"] == pytest.approx(2 / 6)
    assert means["actor/pg_clipfrac_lower"] == pytest.approx(1 / 6)
    assert means["actor/clipped_tokens"] == pytest.approx(2 / 6)


def test_means_over_mini_batches_weigh_tokens_and_updates():
    """Token means weigh every token; the loss is a mean over mini-batches, whatever their micro-batches."""
    objective = load_objective("grpo_dapo")
    one, two = by_hand([1.0, 1.0], [1.0, 1.0]), by_hand([1.2, 1.2, 1.2, 1.2], [3.0] * 4, [1, 1, 2])
    plan = objective.prepare(two)
    total = objective.loss(one, objective.prepare(one)).metrics
    for part in ([0], [2, 1]):
        total = total + objective.loss(two.select(part), plan.select(part)).metrics
    means = total.means()
    assert means["actor/ratio_mean"] == pytest.approx((2 + 4 * 1.2) / 6)
    assert means["actor/pg_loss"] == pytest.approx((-1.0 - 3.6) / 2)
    assert dict(total.items())["actor/pg_loss"][1].item() == pytest.approx(2.0)


def test_metrics_hold_no_graph():
    objective = load_objective("tepo")
    batch = by_hand([0.5, 2.0], [1.0, 1.0], entropies=tensor(0.2, 0.9), old_entropies=tensor(0.3, 0.3))
    out = objective.loss(batch, objective.prepare(batch))
    assert not out.metrics.sums.requires_grad
    assert not any(value.requires_grad for value in (*out.tokens.values(), *out.metrics.maxima.values()))
    assert set(out.tokens) == {"log_ratio", "ratio", "advantage", "clipped", "entropy_change", "kl", "kl_mask"}


def test_select_keeps_the_order_asked_for():
    batch = by_hand([1.0, 2.0, 3.0, 4.0], [1.0] * 4, [1, 2, 1], uid=torch.tensor([7, 8, 9]))
    part = batch.select([2, 0])
    assert part.uid.tolist() == [9, 7]
    assert (part.logprobs + 1).exp().tolist() == pytest.approx([4.0, 1.0])
    assert part.positions.tolist() == [0, 0]
    assert batch.positions.tolist() == [0, 0, 1, 0]
