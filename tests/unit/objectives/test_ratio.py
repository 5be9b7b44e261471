"""Ratio levels and their gradients, by hand."""

import math

import pytest
import torch

from tepo.objectives import TokenBatch, load_objective
from tests.unit.objectives.flat import by_hand, coefficients, tensor


def row(**ratio):
    return load_objective(
        {"advantage": "group_normalized", "ratio": ratio, "surrogate": "unclipped", "aggregation": "token_mean"}
    )


BATCH = ([1.2, 0.9, 1.5, 0.8], [2.0, 2.0, 2.0, -1.0], [3, 1])
GEOMETRIC = (1.2 * 0.9 * 1.5) ** (1 / 3)


def test_token():
    assert coefficients(row(level="token"), by_hand(*BATCH)) == pytest.approx([2.4, 1.8, 3.0, -0.8])


def test_log_ratios_stop_at_20():
    """As in verl: e^20 and e^-20 without a gradient outside; each token by itself, before a mean over the response."""
    batch = by_hand([math.exp(19.0), math.exp(21.0), math.exp(-21.0), math.exp(-19.0)], [1.0] * 4, [2, 2])
    objective = row(level="token")
    out = objective.loss(batch, objective.prepare(batch))
    bounded = [19.0, 20.0, -20.0, -19.0]
    assert out.tokens["ratio"].log().tolist() == pytest.approx(bounded)
    assert out.tokens["log_ratio"].tolist() == pytest.approx(bounded)
    assert (coefficients(objective, batch) / out.tokens["ratio"]).tolist() == pytest.approx([1.0, 0.0, 0.0, 1.0])
    sequence = row(level="sequence")
    means = sequence.loss(batch, sequence.prepare(batch)).tokens["ratio"].log()
    assert means.tolist() == pytest.approx([19.5, 19.5, -19.5, -19.5])


def test_a_token_that_neither_policy_can_draw_has_ratio_1():
    """log 0 is a finite floor on both sides, and takes no gradient."""
    never = tensor(-math.inf, -1.0).requires_grad_()
    batch = TokenBatch(tensor(-math.inf, -1.0), tensor(1.0, 1.0), torch.tensor([2]), never)
    objective = row(level="token")
    out = objective.loss(batch, objective.prepare(batch))
    assert out.tokens["ratio"].tolist() == [1.0, 1.0]
    assert torch.autograd.grad(out.loss, never)[0].tolist() == [0.0, -0.5]


def test_sequence_gradient_has_no_length_under_token_mean():
    """A w / N for each token (objectives.md 13.2, identity 1)."""
    assert coefficients(row(level="sequence"), by_hand(*BATCH)) == pytest.approx([2 * GEOMETRIC] * 3 + [-0.8])
    assert coefficients(row(level="sequence", gradient="local"), by_hand(*BATCH)) == pytest.approx(
        [2 * GEOMETRIC] * 3 + [-0.8]
    )


def test_algorithm_1_line_21_divides_by_the_length():
    assert coefficients(row(level="sequence", gradient="line_21"), by_hand(*BATCH)) == pytest.approx(
        [2 * GEOMETRIC / 3] * 3 + [-0.8]
    )


def test_arithmetic_mean():
    objective, batch = row(level="sequence", mean="arithmetic"), by_hand(*BATCH)
    assert coefficients(objective, batch) == pytest.approx([2.4, 1.8, 3.0, -0.8])
    assert objective.loss(batch, objective.prepare(batch)).tokens["ratio"] == pytest.approx([1.2, 1.2, 1.2, 0.8])


def test_local_and_full_differ_when_the_advantage_varies():
    """GSPO-token keeps each token's own advantage; GSPO's gradient spreads their mean."""
    batch = ([1.2, 0.9], [1.0, 3.0])
    w = math.sqrt(1.2 * 0.9)
    assert coefficients(row(level="sequence", gradient="local"), by_hand(*batch)) == pytest.approx([w, 3 * w])
    assert coefficients(row(level="sequence"), by_hand(*batch)) == pytest.approx([2 * w, 2 * w])


def test_prefix():
    """p = 1.2, sqrt(1.08), cbrt(1.62); the full gradient of token j is the sum of p_t/t over t >= j."""
    p = [1.2, math.sqrt(1.08), GEOMETRIC]
    assert coefficients(row(level="prefix"), by_hand(*BATCH)) == pytest.approx([2 * x for x in p] + [-0.8])
    full = [p[0] + p[1] / 2 + p[2] / 3, p[1] / 2 + p[2] / 3, p[2] / 3]
    assert coefficients(row(level="prefix", gradient="full"), by_hand(*BATCH)) == pytest.approx(
        [2 * x for x in full] + [-0.8]
    )


def test_prefix_on_policy_weights_early_tokens_by_harmonic_sums():
    length = 50
    weights = coefficients(row(level="prefix", gradient="full"), by_hand([1.0] * length, [1.0] * length))
    assert weights[0] == pytest.approx(sum(1 / t for t in range(1, length + 1)))
    assert weights[-1] == pytest.approx(1 / length)


def test_long_prefixes_keep_their_precision_behind_other_responses():
    """The cumulative sum is over the flat batch: in float32 alone a late response would lose its digits."""
    lengths = torch.tensor([8000, 3])
    d = torch.zeros(8003)
    d[:8000] = 19.0
    d[8000:] = torch.tensor([0.01, 0.02, 0.03])
    from tepo.objectives.segments import prefix_mean, sequence_of

    found = prefix_mean(d, lengths, sequence_of(lengths, 8003))[8000:]
    assert found.tolist() == pytest.approx([0.01, 0.015, 0.02], rel=1e-6)


def test_product():
    """1.2 * 0.9 * 1.5 = 1.62 for the first response; each token carries the terms of all three."""
    objective, batch = row(level="sequence", mean="product"), by_hand(*BATCH)
    assert objective.loss(batch, objective.prepare(batch)).tokens["ratio"] == pytest.approx([1.62, 1.62, 1.62, 0.8])
    assert coefficients(objective, batch) == pytest.approx([3 * 1.62 * 2] * 3 + [-0.8])
    local = coefficients(row(level="sequence", mean="product", gradient="local"), by_hand(*BATCH))
    assert local == pytest.approx([1.62 * 2] * 3 + [-0.8])
