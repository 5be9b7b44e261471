"""Surrogates that drop or fade tokens by how far they have moved: figures by hand."""

import math
from dataclasses import replace

import pytest
import torch

from tepo.common.errors import UserError
from tepo.objectives import TokenBatch, load_objective
from tests.invariants.rows import changed
from tests.unit.objectives.flat import by_hand, coefficients, tensor


def moved(pairs: list[tuple[float, float]], advantages: list[float]) -> TokenBatch:
    """Tokens with these probabilities, new and old; leaves are log-probs."""
    new, old = (tensor(*values).log() for values in zip(*pairs, strict=True))
    return TokenBatch(old, tensor(*advantages), torch.tensor([len(pairs)]), new.requires_grad_())


# A rare token may triple, a common one may not rise by a quarter: PPO's clip (0.2) would judge the other way round.
PAIRS = [(0.03, 0.01), (0.95, 0.7), (0.85, 0.7), (0.4, 0.65), (0.01, 0.03)]


def test_dppo_tv_bounds_the_change_of_probability_on_the_side_that_A_pushes_to():
    up = coefficients(load_objective("dppo_tv"), moved(PAIRS, [2.0] * 5))
    assert up == pytest.approx([6.0, 0.0, 2 * 0.85 / 0.7, 2 * 0.4 / 0.65, 2 / 3])
    down = coefficients(load_objective("dppo_tv"), moved(PAIRS, [-2.0] * 5))
    assert down == pytest.approx([-6.0, -2 * 0.95 / 0.7, -2 * 0.85 / 0.7, 0.0, -2 / 3])


def test_a_masked_token_has_no_part_in_the_value_and_is_counted_as_clipped():
    objective, batch = load_objective("dppo_tv"), moved(PAIRS, [2.0] * 5)
    out = objective.loss(batch, objective.prepare(batch))
    assert out.loss.item() == pytest.approx(-(6 + 1.7 / 0.7 + 0.8 / 0.65 + 2 / 3) / 5)
    assert out.tokens["clipped"].tolist() == [False, True, False, False, False]
    assert out.metrics.means()["actor/pg_clipfrac"] == pytest.approx(0.2)


def test_ipo_looks_at_no_sign():
    plain = changed("ipo", {"penalty": {"kind": "none"}, "surrogate": {"low": 0.22, "high": 0.22}})
    for advantage in (2.0, -2.0):
        found = coefficients(load_objective(plain), moved(PAIRS, [advantage] * 5))
        assert found == pytest.approx([3 * advantage, 0.0, advantage * 0.85 / 0.7, 0.0, advantage / 3])


def bernoulli_kl(p: float, q: float) -> float:
    return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))


def test_dppo_kl_bounds_the_divergence_from_the_old_policy():
    """KL(pi_old || pi), not the other way round: a bound between the two tells them apart."""
    assert bernoulli_kl(0.9, 0.8) < 0.05 < bernoulli_kl(0.9, 0.7) == pytest.approx(0.1537, abs=1e-4)
    found = coefficients(load_objective("dppo_kl"), moved([(0.9, 0.8), (0.9, 0.7), (0.6, 0.8)], [1.0] * 3))
    assert found == pytest.approx([0.9 / 0.8, 0.0, 0.6 / 0.8])
    between = (bernoulli_kl(0.9, 0.8) + bernoulli_kl(0.8, 0.9)) / 2
    bound = {"surrogate": {"low": between, "high": between}}
    one_way = coefficients(load_objective(changed("dppo_kl", bound)), moved([(0.9, 0.8)], [1.0]))
    assert (one_way == 0) == (bernoulli_kl(0.9, 0.8) > between)


def test_sure_tokens_diverge_by_nothing_from_sure_tokens():
    """log pi = 0 on both sides: 0 log 0 must not be a NaN; from a sure token to 0.5 the divergence is large."""
    batch = TokenBatch(tensor(0.0, 0.0), tensor(1.0, -1.0), torch.tensor([2]), tensor(0.0, math.log(0.5)))
    batch = replace(batch, logprobs=batch.logprobs.requires_grad_())
    assert coefficients(load_objective("dppo_kl"), batch) == pytest.approx([1.0, 0.0])


def test_a_divergence_of_tokens_goes_with_the_ratio_of_tokens():
    with pytest.raises(UserError, match="surrogate divergence_mask goes with one ratio alone"):
        load_objective(changed("dppo_tv", {"ratio": {"level": "sequence"}}))


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_hard_clip_stops_both_sides_whatever_the_sign(advantage):
    bare = changed("kimi_k2_5", {"penalty": {"kind": "none"}})
    objective, batch = load_objective(bare), by_hand([0.5, 0.9, 1.2, 1.5], [advantage] * 4)
    assert coefficients(objective, batch) == pytest.approx([0.0, 0.9 * advantage, 1.2 * advantage, 0.0])
    out = objective.loss(batch, objective.prepare(batch))
    assert out.loss.item() == pytest.approx(-advantage * (0.8 + 0.9 + 1.2 + 1.28) / 4)
    assert objective.clip.bounds == {"low": 0.2, "high": 0.28}


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_a_hard_clip_of_the_log_ratio_ends_where_its_distance_does(advantage):
    """0.81 and 0.83 lie around exp(-0.2) = 0.8187, 1.3 and 1.33 around exp(0.28) = 1.3231; 1 + 0.28 is below both."""
    bare = changed("kimi_k2_5_log_ratio", {"penalty": {"kind": "none"}})
    objective, batch = load_objective(bare), by_hand([0.81, 0.83, 1.3, 1.33], [advantage] * 4)
    assert coefficients(objective, batch) == pytest.approx([0.0, 0.83 * advantage, 1.3 * advantage, 0.0])
    assert objective.loss(batch, objective.prepare(batch)).tokens["clipped"].tolist() == [True, False, False, True]


def test_kimi_adds_the_squared_log_ratio():
    """tau d^2 with tau = 0.001: a slope of -0.002 d beside the policy term."""
    d = math.log(1.2)
    assert coefficients(load_objective("kimi_k2_5"), by_hand([1.2], [1.0])) == pytest.approx([1.2 - 0.002 * d])


def test_vespo_weighs_a_response_by_the_product_of_its_ratios():
    """w = 1.5 * 0.8 = 1.2 and w = 0.5: w^k e^(c (1 - w)), k = 2 and c = 3 where A >= 0, 3 and 2 elsewhere."""
    objective = load_objective("vespo")
    batch = by_hand([1.5, 0.8, 0.5], [1.0, 1.0, -2.0], lengths=[2, 1])
    good, bad = 1.2**2 * math.exp(3 * -0.2), 0.5**3 * math.exp(2 * 0.5)
    assert coefficients(objective, batch) == pytest.approx([good, good, -2 * bad])
    value = good * ((math.log(1.5) - 1) + (math.log(0.8) - 1)) - 2 * bad * (math.log(0.5) - 1)
    assert objective.loss(batch, objective.prepare(batch)).loss.item() == pytest.approx(-value / 3)


def test_vespo_to_the_sampler_weighs_by_what_the_sampler_said():
    """Ratios 1.5 * 0.8 to the old policy, whose tokens are 1.25 and 0.5 times as likely as the sampler's: w = 0.75."""
    sampler = tensor(-1 - math.log(1.25), -1 - math.log(0.5))
    batch = by_hand([1.5, 0.8], [1.0, 1.0], sampler_logprobs=sampler)
    phi = 0.75**2 * math.exp(3 * 0.25)
    assert coefficients(load_objective("vespo_sampler"), batch) == pytest.approx([phi, phi])
    assert load_objective("vespo_sampler").needs.sampler_logprobs
    with pytest.raises(UserError, match="reads `sampler_logprobs`, which is not given"):
        coefficients(load_objective("vespo_sampler"), replace(batch, sampler_logprobs=None))


def test_trust_region_masking_by_the_current_policy():
    """log pi / pi_sampler is log(1.5) + log(1.25) at one token of the first response, half its square 0.198."""
    gap = [0.0, math.log(1.25), 0.0]
    batch = by_hand([1.0, 1.5, 0.8], [1.0] * 3, [2, 1], sampler_logprobs=tensor(*(-1 - g for g in gap)))
    for high, kept in ((0.19, [0.0, 0.0, 1.0]), (0.2, [1.0] * 3), (0.02, [0.0] * 3)):
        objective = load_objective(changed("trm_current", {"weight": {"high": high}}))
        assert objective.loss(batch, objective.prepare(batch)).tokens["weight"].tolist() == kept
    by_old = load_objective(changed("trm", {"correction": {"high": 0.19}}))  # log 1.25 alone
    assert by_old.prepare(batch).correction.tolist() == [1.0] * 3


def test_vespo_weighs_as_much_as_it_should_on_policy():
    assert coefficients(load_objective("vespo"), by_hand([1.0] * 3, [1.0, 0.0, -1.0], [1, 1, 1])) == pytest.approx(
        [1.0, 0.0, -1.0]
    )
