"""Identities between rows, by gradients down to the logits in float64."""

import pytest
import torch

from tepo.objectives import load_objective, names
from tepo.objectives.testing.case import TabularCase, make_case

BOUNDS = {"low": 0.2, "high": 0.28}  # of TEPO


def gradient(name: str, case: TabularCase, advantages=None, **changes) -> torch.Tensor:
    objective = load_objective(name, changes)
    batch = case.batch(objective, advantages)
    return torch.autograd.grad(objective.loss(batch, objective.prepare(batch)).loss, case.logits)[0]


@pytest.mark.parametrize("name", ["tepo_no_kl", "cispo", "reinforce", "prefix_is", "kl_cov", "tepo", "tepo_kl_all"])
def test_on_policy_rows_agree(name):
    """At the first mini-batch of a rollout all of these are one method; k3 to the old policy has no force there."""
    case = make_case(1, drift=0.0)
    assert torch.allclose(gradient(name, case), gradient("grpo_dapo", case), rtol=1e-10, atol=1e-14)


def test_k1_pushes_every_token_down_even_on_policy():
    """k1 as a loss is a constant force of beta: the reading that explains the collapse at beta = 1 (A3)."""
    case = make_case(1, drift=0.0)
    moved = gradient("tepo_kl_all", case, kl="d", beta=1) - gradient("grpo_dapo", case)
    expected = torch.autograd.grad(case.chosen(case.logits).mean(), case.logits)[0]
    assert torch.allclose(moved, expected, rtol=1e-10, atol=1e-14)


def test_tepo_without_kl_is_gspo_token_with_token_mean():
    case = make_case(2)
    other = gradient("gspo_token", case, average="tokens", **BOUNDS)
    assert torch.allclose(gradient("tepo_no_kl", case), other, rtol=1e-10, atol=1e-14)


def test_tepo_without_kl_luspo_and_token_sum_are_parallel():
    """B/N is the one factor between them, once the clip bounds agree."""
    case = make_case(2)
    tokens, sequences = int(case.lengths.sum()), int((case.lengths > 0).sum())
    base = gradient("tepo_no_kl", case) * tokens / sequences
    assert torch.allclose(gradient("seq_mean_token_sum", case), base, rtol=1e-10, atol=1e-14)
    assert torch.allclose(gradient("luspo", case, **BOUNDS), base, rtol=1e-10, atol=1e-14)


def test_equal_lengths_make_tepo_without_kl_and_gspo_parallel():
    case = make_case(2)
    case.lengths, case.offsets = torch.full((8,), 3), list(range(0, 25, 3))
    case.rewards, case.group_ids, case.uid, case.finished = (
        value[:8] for value in (case.rewards, case.group_ids, case.uid, case.finished)
    )
    wide = gradient("gspo", case, **BOUNDS)
    assert torch.allclose(gradient("tepo_no_kl", case), wide, rtol=1e-10, atol=1e-14)
    assert torch.allclose(gradient("seq_mean_token_mean", case), wide, rtol=1e-10, atol=1e-14)


def test_line_21_is_gspo_on_another_scale():
    """Summed over a response, Algorithm 1 line 21 is B/N times GSPO's gradient:
    then TEPO would be GSPO (identity 2)."""
    case = make_case(2)
    tokens, sequences = int(case.lengths.sum()), int((case.lengths > 0).sum())
    literal = gradient("tepo_no_kl", case, w="sg(exp(mean_i(d)))*(1 + (d - sg(d))/T)")
    gspo = gradient("gspo", case, **BOUNDS)
    assert torch.allclose(literal, gspo * sequences / tokens, rtol=1e-10, atol=1e-14)


def test_gspo_and_gspo_token_differ_only_where_the_advantage_varies():
    case = make_case(3, drift=1e-5)
    assert torch.allclose(gradient("gspo", case), gradient("gspo_token", case), rtol=1e-10, atol=1e-14)
    varying = torch.randn(len(case.tokens), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert not torch.allclose(gradient("gspo", case, varying), gradient("gspo_token", case, varying), rtol=1e-3)


def test_responses_of_one_token_make_sequence_and_token_ratios_one():
    case = make_case(4)
    count = len(case.tokens)
    case.lengths, case.offsets = torch.ones(count, dtype=torch.int64), list(range(count + 1))
    case.rewards = (torch.arange(count) % 3 == 0).double()
    case.group_ids, case.uid, case.finished = (
        torch.arange(count) // 8,
        torch.arange(count),
        torch.ones(count, dtype=torch.bool),
    )
    for name in ("tepo_no_kl", "prefix_is", "seq_mean_token_mean", "seq_mean_token_sum"):
        assert torch.allclose(gradient(name, case), gradient("grpo_dapo", case), rtol=1e-10, atol=1e-14), name


def test_equal_rewards_leave_only_the_explicit_penalties():
    case = make_case(5)
    case.rewards = torch.ones_like(case.rewards)
    penalised = {
        "grpo",
        "tepo_kl_all",
        "tepo_max_entropy",
        "tepo_min_entropy",
        "kl_cov",
        "dro",
        "dppo_squared_kl",
        "ipo",
    }
    penalised |= {"kimi_k2_5", "kimi_k2_5_log_ratio"}
    shaped = {"gtpo", "gtpo_v2", "gtpo_clipped", "grpo_s", "grpo_s_v2", "gdpo"}  # told apart by entropies and lengths
    for name in set(names()) - shaped:
        assert bool(gradient(name, case).any()) == (name in penalised), name


def test_eq_4_to_the_letter_is_ppo_where_the_advantage_is_positive():
    case = make_case(6)
    positive = torch.rand(len(case.tokens), dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.1
    letter = "min(w, clip(w, 1 - low, 1 + high))*A"
    for sign, same in ((1, True), (-1, False)):
        one, other = (gradient("tepo_no_kl", case, sign * positive, **change) for change in ({}, {"J": letter}))
        assert torch.allclose(one, other, rtol=1e-10 if same else 1e-3, atol=1e-14) == same
