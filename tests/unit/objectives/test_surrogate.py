"""The clip truth table (both signs, both readings of Eq. 4), dual clip, and the surrogates that never clip:
figures by hand."""

import math

import pytest
import torch

from tepo.objectives import load_objective
from tests.unit.objectives.flat import by_hand, coefficients, tensor

RATIOS = [0.5, 0.9, 1.1, 1.5, 4.0]


def token_row(surrogate: dict) -> dict:
    ratio = {"level": "none"} if surrogate["kind"] == "log_prob" else {"level": "token"}
    return {"advantage": "group_normalized", "ratio": ratio, "surrogate": surrogate, "aggregation": "token_mean"}


def row(kind: str, **settings):
    return load_objective(token_row({"kind": kind, **settings}))


def test_ppo_clip_positive_advantage():
    """Outside on the high side the gradient is 0, on the low side it flows."""
    batch = by_hand(RATIOS, [2.0] * 5)
    assert coefficients(row("ppo_clip", low=0.2, high=0.28), batch) == pytest.approx([1.0, 1.8, 2.2, 0.0, 0.0])
    out = row("ppo_clip", low=0.2, high=0.28)
    loss = out.loss(batch, out.prepare(batch))
    assert loss.loss.item() == pytest.approx(-(1.0 + 1.8 + 2.2 + 2.56 + 2.56) / 5)
    assert loss.tokens["clipped"].tolist() == [False, False, False, True, True]


def test_ppo_clip_negative_advantage():
    batch = by_hand(RATIOS, [-2.0] * 5)
    objective = row("ppo_clip", low=0.2, high=0.28)
    assert coefficients(objective, batch) == pytest.approx([0.0, -1.8, -2.2, -3.0, -8.0])
    assert objective.loss(batch, objective.prepare(batch)).loss.item() == pytest.approx(
        (1.6 + 1.8 + 2.2 + 3.0 + 8.0) / 5
    )


def test_zero_advantage_has_no_gradient():
    for kind in ("ppo_clip", "paper_clip", "unclipped", "cispo", "sapo", "log_prob"):
        assert coefficients(row(kind), by_hand(RATIOS, [0.0] * 5)).abs().max() == 0


def test_dual_clip_bounds_the_loss_where_the_advantage_is_negative():
    batch = by_hand([*RATIOS, 4.0], [-2.0] * 5 + [2.0])
    objective = row("ppo_clip", low=0.2, high=0.28, dual=3.0)
    assert coefficients(objective, batch) == pytest.approx([0.0, -1.8, -2.2, -3.0, 0.0, 0.0])
    out = objective.loss(batch, objective.prepare(batch))
    assert out.loss.item() == pytest.approx((1.6 + 1.8 + 2.2 + 3.0 + 6.0 - 2.56) / 6)
    assert out.tokens["clipped_lower"].tolist() == [False] * 4 + [True, False]


def test_eq_4_to_the_letter():
    """Equal to PPO where A > 0; where A < 0 there is no lower bound, and the gradient dies above the upper one."""
    positive, negative = by_hand(RATIOS, [2.0] * 5), by_hand(RATIOS, [-2.0] * 5)
    literal, ppo = row("paper_clip", low=0.2, high=0.28), row("ppo_clip", low=0.2, high=0.28)
    assert torch.equal(coefficients(literal, positive), coefficients(ppo, positive))
    assert coefficients(literal, negative) == pytest.approx([-1.0, -1.8, -2.2, 0.0, 0.0])


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_never_drops_a_token(advantage):
    """The clipped ratio is the weight, in every cell of the table; no lower bound unless asked for."""
    assert coefficients(row("cispo", high=0.28), by_hand(RATIOS, [advantage] * 5)) == pytest.approx(
        [advantage * w for w in (0.5, 0.9, 1.1, 1.28, 1.28)]
    )
    assert coefficients(row("cispo", low=0.2, high=4.0), by_hand(RATIOS, [advantage] * 5)) == pytest.approx(
        [advantage * w for w in (0.8, 0.9, 1.1, 1.5, 4.0)]
    )


def test_cispo_value_holds_the_log_prob():
    objective, batch = row("cispo"), by_hand([2.0], [3.0])
    assert objective.loss(batch, objective.prepare(batch)).loss.item() == pytest.approx(
        -1.28 * 3.0 * (math.log(2.0) - 1)
    )


def test_sapo_gate():
    """Weight 1 at ratio 1; 4 s (1 - s) r elsewhere, with a sharper gate where A <= 0."""
    assert coefficients(row("sapo"), by_hand([1.0, 1.0], [2.0, -2.0])) == pytest.approx([2.0, -2.0])
    for advantage, tau in ((2.0, 1.0), (-2.0, 1.05)):
        s = 1 / (1 + math.exp(-tau * 0.5))
        assert coefficients(row("sapo"), by_hand([1.5], [advantage])) == pytest.approx(
            [advantage * 4 * s * (1 - s) * 1.5]
        )


def test_unclipped_and_log_prob():
    assert coefficients(row("unclipped"), by_hand(RATIOS, [2.0] * 5)) == pytest.approx([2 * r for r in RATIOS])
    assert coefficients(row("log_prob"), by_hand(RATIOS, [2.0, -1.0, 0.5, 1.0, 3.0])) == pytest.approx(
        [2.0, -1.0, 0.5, 1.0, 3.0]
    )


def test_gmpo_clips_tokens_not_responses():
    """Two tokens, A > 0: the first is past e^0.4 and loses its own gradient alone;
    the value uses its clipped log-ratio."""
    objective = load_objective("gmpo")
    batch = by_hand([2.0, 1.1], [3.0, 3.0])
    value = 3.0 * math.exp((0.4 + math.log(1.1)) / 2)
    out = objective.loss(batch, objective.prepare(batch))
    assert out.loss.item() == pytest.approx(-value)
    (gradient,) = torch.autograd.grad(out.loss, batch.logprobs)
    assert gradient == pytest.approx(tensor(0.0, -value / 2))


def test_gmpo_clips_one_side_alone():
    """A < 0: a ratio above e^0.4 is what has to come down, so it keeps its value and its gradient;
    below e^-0.4 it stops."""
    objective = load_objective("gmpo")
    batch = by_hand([2.0, 0.5], [-3.0, -3.0])
    value = -3.0 * math.exp((math.log(2.0) - 0.4) / 2)
    out = objective.loss(batch, objective.prepare(batch))
    assert out.loss.item() == pytest.approx(-value)
    assert out.tokens["clipped"].tolist() == [False, True]
    (gradient,) = torch.autograd.grad(out.loss, batch.logprobs)
    assert gradient == pytest.approx(tensor(-value / 2, 0.0))


def test_gspo_drops_whole_responses():
    """Geometric mean 1.05 > 1.0004 at A > 0: no gradient for either token, though one ratio is below 1."""
    objective = load_objective("gspo")
    batch = by_hand([0.9, 1.225, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], lengths=[2, 2])
    assert coefficients(objective, batch) == pytest.approx([0.0, 0.0, 1.0, 1.0])
