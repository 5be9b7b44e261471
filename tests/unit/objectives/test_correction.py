"""Corrections of the sampler-trainer gap beside plain truncation: bounds, masks, rejection, means. Figures by hand."""

import math

import pytest
import torch

from tepo.common.errors import UserError
from tepo.objectives import load_objective
from tests.invariants.rows import changed
from tests.unit.objectives.flat import by_hand, coefficients, tensor

GAPS = [1.5, 4.0, 0.4, 0.8]  # pi_old / pi_sampler of each token
LENGTHS = [2, 0, 1, 1]


def weights(**correction) -> torch.Tensor:
    """v of each token."""
    objective = load_objective(changed("grpo_dapo", {"correction": correction}))
    sampler = -1 - torch.log(tensor(*GAPS))
    return coefficients(objective, by_hand([1.0] * 4, [1.0] * 4, LENGTHS, sampler_logprobs=sampler))


def test_a_floor_and_a_cap():
    assert weights(kind="truncated", floor=0.5) == pytest.approx([1.5, 2.0, 0.5, 0.8])
    with pytest.raises(UserError, match=r"correction\.floor 3 is above correction\.cap 2"):
        weights(kind="truncated", floor=3.0)


def test_icepop_keeps_the_ratio_inside_its_bounds_and_drops_the_rest():
    assert weights(kind="masked", low=0.5, high=3.0) == pytest.approx([1.5, 0.0, 0.0, 0.8])
    assert weights(kind="masked") == pytest.approx([1.5, 4.0, 0.0, 0.8])
    assert weights(kind="masked", low=0.4 - 1e-12, high=4.0 + 1e-12) == pytest.approx(GAPS)


def test_by_response_the_ratio_is_a_product():
    assert weights(kind="masked", level="sequence") == pytest.approx([0.0, 0.0, 0.0, 0.8])
    assert weights(kind="masked", level="sequence", high=6.5) == pytest.approx([6.0, 6.0, 0.0, 0.8])


def test_means_over_tokens_and_over_responses_that_are_not_empty():
    token = weights(kind="truncated", normalize=True)
    assert token == pytest.approx([value / ((1.5 + 2.0 + 0.4 + 0.8) / 4) for value in (1.5, 2.0, 0.4, 0.8)])
    response = weights(kind="truncated", level="sequence", normalize=True)
    assert response == pytest.approx([value / ((2.0 + 0.4 + 0.8) / 3) for value in (2.0, 2.0, 0.4, 0.8)])
    assert weights(kind="masked", low=5.0, high=6.0, normalize=True) == pytest.approx([0.0] * 4)


def test_the_mean_is_of_the_mini_batch_not_of_a_micro_batch():
    objective = load_objective(changed("grpo_dapo", {"correction": {"kind": "truncated", "normalize": True}}))
    batch = by_hand([1.0] * 4, [1.0] * 4, LENGTHS, sampler_logprobs=-1 - torch.log(tensor(*GAPS)))
    plan = objective.prepare(batch)
    loss = sum(objective.loss(batch.select([i]), plan.select([i])).loss for i in range(4))
    (gradient,) = torch.autograd.grad(loss, batch.logprobs)
    assert -4 * gradient == pytest.approx(weights(kind="truncated", normalize=True))


def test_rejection_of_responses():
    """The geometric mean of the first response is sqrt(6) = 2.45."""
    assert weights(kind="rejected") == pytest.approx([0.0, 0.0, 0.0, 1.0])
    assert weights(kind="rejected", low=0.4 - 1e-12, high=2.5) == pytest.approx([1.0] * 4)
    assert weights(kind="rejected", over="token") == pytest.approx([1.0, 0.0, 0.0, 1.0])
    assert weights(kind="rejected", over="sum", low=0.1, high=5.9) == pytest.approx([0.0, 0.0, 1.0, 1.0])
    k3 = [value - 1 - math.log(value) for value in GAPS]
    assert k3 == pytest.approx([0.0945, 1.6137, 0.3163, 0.0231], abs=1e-4)
    for over, first in (("max", k3[1]), ("sum", k3[0] + k3[1]), ("mean", (k3[0] + k3[1]) / 2)):
        at = {"kind": "rejected", "estimator": "k3", "over": over}
        assert weights(**at, high=first + 1e-9) == pytest.approx([1.0] * 4)
        assert weights(**at, high=first - 1e-9) == pytest.approx([0.0, 0.0, 1.0, 1.0])
    assert weights(kind="rejected", estimator="k2", over="max", high=0.3) == pytest.approx([0.0, 0.0, 0.0, 1.0])


def test_what_is_kept_may_have_the_truncated_ratio_of_its_token():
    assert weights(kind="rejected", high=2.5, low=0.1, cap=2.0) == pytest.approx([1.5, 2.0, 0.4, 0.8])


def test_what_is_rejected_stays_in_the_denominator():
    """1/N with N = 4, though one token alone has a gradient (`weights` is N times the gradient)."""
    assert weights(kind="rejected")[3] == pytest.approx(1.0)


def test_settings_that_make_no_sense():
    with pytest.raises(UserError, match="leave nothing"):
        weights(kind="masked", low=2.0, high=1.0)
    with pytest.raises(UserError, match="k1 has a sign"):
        weights(kind="rejected", over="max")
    with pytest.raises(UserError, match=r"correction\.low=0\.7 has no effect"):
        weights(kind="rejected", estimator="k3", low=0.7)


def test_metrics():
    objective = load_objective(changed("icepop", {"correction": {"high": 3.0}}))
    batch = by_hand([1.0] * 4, [1.0] * 4, LENGTHS, sampler_logprobs=-1 - torch.log(tensor(*GAPS)))
    means = objective.loss(batch, objective.prepare(batch)).metrics.means()
    assert means["actor/correction_weight"] == pytest.approx((1.5 + 0.8) / 4)
    assert means["actor/correction_dropped"] == pytest.approx(0.5)
