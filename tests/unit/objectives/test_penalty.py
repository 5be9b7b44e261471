"""KL estimators by value and slope, the masks of Eq. 4, entropy-change readings, anchors, the mean over the mask,
full KL."""

import math

import pytest
import torch
import yaml

from tepo.common.errors import UserError
from tepo.objectives import load_objective
from tepo.objectives.axes.penalty import EITHER, NEGATIVE_RISING, POSITIVE_FALLING, changed_tokens, kl_estimate
from tepo.objectives.loading import text
from tepo.objectives.testing.case import make_case
from tests.invariants.rows import changed
from tests.unit.objectives.flat import by_hand, tensor

POINTS = [0.0, 0.01, -0.01, 5.0, -5.0]  # d = log pi - log anchor
VALUES = {
    "k1": lambda d: d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: math.exp(-d) + d - 1,
    "abs": abs,
    "r_k3": lambda d: d * math.exp(d) - math.exp(d) + 1,  # r log r - r + 1 where the anchor is the old policy
}
SLOPES = {
    "k1": lambda d: 1.0,
    "k2": lambda d: d,
    "k3": lambda d: 1 - math.exp(-d),
    "abs": lambda d: (d > 0) - (d < 0),
    "r_k3": lambda d: d * math.exp(d),
}


@pytest.mark.parametrize("estimator", VALUES)
@pytest.mark.parametrize("point", POINTS)
def test_estimators(estimator, point):
    d = tensor(point).requires_grad_()
    value = kl_estimate(estimator, d, d.exp())
    (slope,) = torch.autograd.grad(value.sum(), d)
    assert value.item() == pytest.approx(VALUES[estimator](point), rel=1e-9, abs=1e-12)
    assert slope.item() == pytest.approx(SLOPES[estimator](point), rel=1e-9, abs=1e-12)


def test_exact_kl_is_what_the_estimators_estimate():
    """Sums over the vocabulary: k1 and k3 under pi, r k3 under pi_old, all equal KL(pi || pi_old);
    forward k3 is the other KL."""
    case = make_case(0, vocabulary=6)
    pi, old = torch.softmax(case.logits, -1).detach(), torch.softmax(case.old_logits, -1)
    d = pi.log() - old.log()
    exact = (pi * d).sum(-1)
    torch.testing.assert_close((pi * kl_estimate("k1", d)).sum(-1), exact)
    torch.testing.assert_close((pi * kl_estimate("k3", d)).sum(-1), exact)
    torch.testing.assert_close((old * kl_estimate("r_k3", d, d.exp())).sum(-1), exact)
    torch.testing.assert_close((old * kl_estimate("k3", d)).sum(-1), ((old / pi) * old - old + old * d).sum(-1))
    assert (old * kl_estimate("k3", d)).sum(-1).sub(exact).abs().max() > 1e-3, (
        "k3 on samples of the old policy is biased"
    )


def test_masks_of_equation_4():
    advantages = tensor(1, 1, 1, -1, -1, -1, 0, 0)
    change = tensor(-1, 1, -1e-7, -1, 1, 1e-7, -1, 1)
    assert changed_tokens(POSITIVE_FALLING, change, advantages, 1e-6).tolist() == [True] + [False] * 7
    assert changed_tokens(NEGATIVE_RISING, change, advantages, 1e-6).tolist() == [False] * 4 + [True] + [False] * 3
    assert changed_tokens(EITHER, change, advantages, 1e-6).tolist() == [
        True,
        False,
        False,
        False,
        True,
        False,
        False,
        False,
    ]


def loss_of(source, case):
    objective = load_objective(source)
    batch = case.batch(objective)
    return objective.loss(batch, objective.prepare(batch))


def test_entropy_change_readings():
    """Measured, by covariance (Eq. 18: falls where (log pi - mean)(A - mean) > 0)
    and by STEER's sign (falls where A (log pi + H) > 0)."""
    case = make_case(1)
    batch = case.batch(load_objective("tepo"))
    lp, a, h = batch.logprobs.detach(), batch.advantages, batch.old_entropies
    expected = {
        "measured": (a > 0) & (batch.entropies.detach() < h),
        "covariance": (a > 0) & ((lp - lp.mean()) * (a - a.mean()) > 0),
        "omega": (a > 0) & (a * (lp + h) > 0),
    }
    for reading, mask in expected.items():
        found = loss_of(changed("tepo", {"penalty": {"entropy_change": reading}}), case).tokens["kl_mask"]
        assert torch.equal(found, mask), reading
        assert 0 < mask.sum() < (a > 0).sum(), "the reading separates tokens"
    assert not torch.equal(expected["measured"], expected["covariance"])


def test_mask_is_empty_on_policy():
    """No entropy change before the first update (A6)."""
    assert not loss_of("tepo", make_case(1, drift=0.0)).tokens["kl_mask"].any()


@pytest.mark.parametrize("name", ["tepo_kl_all", "tepo"])
def test_full_kl_gradient_by_logits(name):
    """d KL / dz_v = pi_v (log pi_v/q_v - KL), on the masked tokens, divided by all N tokens."""
    case = make_case(2)
    with_kl = torch.autograd.grad(
        loss_of(changed(name, {"penalty": {"estimator": "full", "coefficient": 2.0}}), case).loss, case.logits
    )[0]
    without = torch.autograd.grad(loss_of("tepo_no_kl", case).loss, case.logits)[0]
    pi, q = torch.softmax(case.logits, -1).detach(), torch.softmax(case.old_logits, -1)
    kl = (pi * (pi / q).log()).sum(-1, keepdim=True)
    expected = 2.0 * pi * ((pi / q).log() - kl) / len(case.tokens)
    if name == "tepo":
        expected = expected * loss_of("tepo", case).tokens["kl_mask"][:, None]
    torch.testing.assert_close(with_kl - without, expected, rtol=1e-9, atol=1e-12)


def test_mean_over_the_mask():
    """Reading A10: the same sum, divided by the masked tokens in place of all."""
    case = make_case(3)
    inside, masked = (
        loss_of(changed("tepo", {"penalty": {"coefficient": 1.0}}), case),
        loss_of(changed("tepo", {"penalty": {"coefficient": 1.0, "mean_over": "masked"}}), case),
    )
    policy = loss_of("tepo_no_kl", case).loss
    count = int(inside.tokens["kl_mask"].sum())
    assert count > 1
    torch.testing.assert_close(masked.loss - policy, (inside.loss - policy) * len(case.tokens) / count)


def test_coefficients_scale_and_penalties_add():
    case = make_case(4)
    base = loss_of("tepo_no_kl", case).loss
    one = loss_of(changed("tepo_kl_all", {"penalty": {"coefficient": 1.0}}), case).loss - base
    tenth = loss_of(changed("tepo_kl_all", {"penalty": {"coefficient": 0.1}}), case).loss - base
    torch.testing.assert_close(tenth * 10, one)
    both = changed("tepo_no_kl", {}) | {
        "penalty": [{"kind": "kl", "coefficient": 1.0}, {"kind": "entropy", "coefficient": 0.5}]
    }
    bonus = loss_of(changed("tepo_max_entropy", {"penalty": {"coefficient": 0.5}}), case).loss - base
    torch.testing.assert_close(loss_of(both, case).loss - base, one + bonus)


def test_each_penalty_has_its_own_mask_mean_and_coefficient():
    """Three beside each other: what they add to the loss, and to one metric for each sort, is the sum of each alone."""
    case, base = make_case(4), yaml.safe_load(text("tepo_no_kl"))
    parts = [
        {"kind": "kl", "estimator": "k2", "coefficient": 0.5},
        {"kind": "kl", "tokens": "either", "mean_over": "masked", "coefficient": 2.0},
        {"kind": "kl", "tokens": POSITIVE_FALLING, "anchor": "initial", "estimator": "abs", "coefficient": -3.0},
        {"kind": "entropy", "coefficient": 0.25},
    ]
    plain = loss_of(base, case).loss
    alone = [loss_of({**base, "penalty": part}, case) for part in parts]
    together = loss_of({**base, "penalty": parts}, case)
    torch.testing.assert_close(together.loss - plain, sum(out.loss - plain for out in alone))
    means = [out.metrics.means() for out in alone]
    found = together.metrics.means()
    assert found["actor/kl_loss"] == pytest.approx(sum(mean.get("actor/kl_loss", 0.0) for mean in means))
    assert found["actor/entropy_loss"] == pytest.approx(means[-1]["actor/entropy_loss"])
    assert found["actor/pg_loss"] == pytest.approx(plain.item())
    for part, out, mean in zip(parts, alone, means, strict=True):
        sort, sign = ("entropy", -1) if part["kind"] == "entropy" else ("kl", 1)
        moved = sign * part["coefficient"] * mean[f"actor/{sort}_loss"]
        assert (out.loss - plain).item() == pytest.approx(moved, rel=1e-6), part


def test_max_and_min_entropy_are_mirrors():
    case = make_case(4)
    base = loss_of("tepo_no_kl", case).loss
    more, less = loss_of("tepo_max_entropy", case).loss - base, loss_of("tepo_min_entropy", case).loss - base
    torch.testing.assert_close(more, -less)
    assert more.item() == pytest.approx(-0.001 * case.entropy(case.logits).mean().item())


def test_top_covariance_takes_the_signed_largest():
    """KL-Cov: (high log-prob, high advantage) and (low, low) before the rest; ties go to the smaller draw."""
    objective = load_objective(changed("kl_cov", {"penalty": {"fraction": 0.5}}))
    batch = by_hand([1.0, 0.2, 1.0, 0.2], [1.0, -1.0, -1.0, 1.0], lengths=[1, 1, 1, 1], uid=torch.arange(4))
    assert objective.loss(batch, objective.prepare(batch)).tokens["kl_mask"].tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("tepo", "entropies"),
        ("grpo", "initial_logprobs"),
        ("kl_cov", "uid"),
        ("tepo_max_entropy", "entropies"),
        ("entropy_advantage", "entropies"),
    ],
)
def test_a_missing_tensor_is_named(source, missing):
    objective, batch = load_objective(source), by_hand([1.0, 1.1], [1.0, -1.0])
    with pytest.raises(UserError, match=missing):
        objective.loss(batch, objective.prepare(batch))


def test_squared_log_ratio_of_the_response():
    """DRO: beta/2 (sum of d)^2, whose slope by each log-prob is beta times the sum."""
    objective = load_objective(changed("dro", {"penalty": {"coefficient": 1.0}}))
    batch = by_hand([1.5, 0.8, 0.5], [0.0, 0.0, 0.0], [2, 1])
    out = objective.loss(batch, objective.prepare(batch))
    sums = [math.log(1.2), math.log(0.5)]
    assert out.loss.item() == pytest.approx((sums[0] ** 2 + sums[1] ** 2) / 2 / 2)
    (gradient,) = torch.autograd.grad(out.loss, batch.logprobs)
    assert gradient == pytest.approx(tensor(sums[0], sums[0], sums[1]) / 2)
    with pytest.raises(UserError, match="k2_response is of responses"):
        load_objective(changed("tepo", {"penalty": {"estimator": "k2_response"}}))
