import math

import pytest
import torch

from tepo.objectives import load_objective
from tests.unit.objectives.flat import by_hand, tensor


def test_values_by_hand():
    objective = load_objective("grpo_dapo")
    entropies = {"entropies": tensor(0.2, 0.4, 0.6), "old_entropies": tensor(0.3, 0.3, 0.3)}
    batch = by_hand([0.5, 1.0, 2.0], [1.0, -1.0, 2.0], [1, 2], **entropies)
    expected = {
        "actor/ppo_kl": 0.0,  # mean of -log ratio: (log 2 - 0 - log 2)/3
        "actor/entropy": 0.4,
        "actor/entropy_change": 0.1,
        "actor/pg_clipfrac": 1 / 3,
        "actor/ratio_mean": 3.5 / 3,
        "actor/pg_loss": -(0.5 - 1.0 + 2.56) / 3,
        "actor/ratio_max": 2.0,
    }
    means = objective.loss(batch, objective.prepare(batch)).metrics.means()
    assert means == pytest.approx(expected, abs=1e-7)


def test_kl_entropy_and_weight_metrics():
    tepo, entropy, steer = (load_objective(name) for name in ("tepo", "tepo_max_entropy", "steer"))
    batch = by_hand([0.5, 2.0], [1.0, 1.0], [1, 1], entropies=tensor(0.2, 0.9), old_entropies=tensor(0.3, 0.3))
    means = tepo.loss(batch, tepo.prepare(batch)).metrics.means()
    assert means["actor/kl_tokens"] == pytest.approx(0.5)
    assert means["actor/kl_loss"] == pytest.approx((2 - 0.6931471805599453 - 1) / 2), "before beta"
    assert entropy.loss(batch, entropy.prepare(batch)).metrics.means()["actor/entropy_loss"] == pytest.approx(0.55)
    out = steer.loss(batch, steer.prepare(batch))
    assert out.metrics.means()["actor/token_weight"] == pytest.approx(out.tokens["weight"].mean().item())


BESIDE_V = {"v": "exp(0*d)", "J": "min(v, clip(w, 1 - low, 1 + high)*A)"}


@pytest.mark.parametrize(
    ("name", "changes", "ratios", "clipped"),
    [
        # where a clip acts and the min around it takes it
        ("grpo_dapo", {}, [1.5, 0.5, 1.5, 0.5], [1, 0, 0, 1]),
        ("grpo_dapo", {"J": "min(w, clip(w, 1 - low, 1 + high))*A"}, [1.5, 0.5, 1.5, 0.5], [1, 0, 1, 0]),
        ("kimi_k2_5", {}, [1.5, 0.5, 1.5, 0.5], [1, 1, 1, 1]),
        # beside the weight `v` itself
        ("grpo_dapo", BESIDE_V, [1.5, 0.5, 1.5, 0.5], [0, 1, 1, 1]),
        # CISPO's weight is held, though no token drops out
        ("cispo", {}, [1.5, 0.5, 1.5, 0.5], [1, 0, 1, 0]),
        # without a clip: where the policy term has no gradient though A is not 0
        ("dppo_tv", {"low": 0.1, "high": 0.1}, [1.5, 0.5, 1.5, 0.5], [1, 0, 0, 1]),  # old probabilities of 0.37
        ("ipo", {}, [1.5, 0.5, 1.5, 0.5], [1, 1, 1, 1]),
        ("gmpo", {}, [1.6, 0.5, 1.6, 0.5], [1, 0, 0, 1]),  # bounds of e^0.4 = 1.49 and 0.67
        ("best_of_group", {}, [1.5, 0.5, 1.1, 1.0], [1, 0, 0, 0]),  # its one bound is a min
        ("reinforce", {}, [1.5, 0.5, 1.5, 0.5], [0, 0, 0, 0]),
        ("opsm", {"delta": 0.04}, [1.1, 1.1, 0.9, 0.95], [0, 0, 0, 0]),  # a mask is no clip: it has a metric of its own
    ],
)
def test_what_counts_as_clipped(name, changes, ratios, clipped):
    """Two tokens of A = 1, two of A = -1; one response each."""
    objective, batch = load_objective(name, changes), by_hand(ratios, [1, 1, -1, -1], [1] * 4)
    out = objective.loss(batch, objective.prepare(batch))
    assert out.tokens["clipped"].int().tolist() == clipped
    assert out.metrics.means()["actor/pg_clipfrac"] == pytest.approx(sum(clipped) / 4)


def test_clip_cov_counts_what_it_drops_and_what_its_clip_stops():
    """Of four tokens the bound of 2 stops the first; two more are drawn. A = 0 counts never."""
    objective = load_objective("clip_cov", {"share": 0.5, "alpha": -50, "beta": 50})
    batch = by_hand([3.0, 1.0, 1.1, 0.9, 1.0], [1.0, 1.0, -1.0, -1.0, 0.0], uid=torch.arange(1))
    out = objective.loss(batch, objective.prepare(batch))
    drawn = objective.prepare(batch).values[objective.planned[-1].number]
    assert drawn.sum() == 2
    assert not drawn[0]
    assert out.tokens["clipped"].sum() == 1 + drawn[:4].sum()


def test_ppo_kl_is_the_mean_of_the_negative_log_ratio():
    """For all rows: e of each token is log(2) and log(4), KL-Cov's too, whose penalty has their size."""
    batch = by_hand([0.5, 0.25], [1.0, -1.0], uid=torch.arange(1))
    for name in ("kl_cov", "grpo_dapo", "gmpo", "vespo"):
        objective = load_objective(name)
        means = objective.loss(batch, objective.prepare(batch)).metrics.means()
        assert means["actor/ppo_kl"] == pytest.approx(1.5 * math.log(2)), name


def test_filtered_metrics_count_the_rest():
    objective = load_objective("grpo_dapo", {"keep": "finished"})
    batch = by_hand([2.0, 3.0, 3.0, 1.0], [1.0] * 4, [1, 2, 1], finished=torch.tensor([True, False, True]))
    metrics = objective.loss(batch, objective.prepare(batch)).metrics.means()
    assert metrics["actor/ratio_mean"] == pytest.approx(1.5)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(0.5)


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
