"""Identities between rows, by gradients down to the logits in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tepo.objectives import load_objective, names
from tepo.objectives.testing.case import TabularCase, make_case

BOUNDS = {"low": 0.2, "high": 0.28}  # of TEPO
LINE_21 = {"w": "sg(exp(mean_i(d)))*(1 + (d - sg(d))/T)"}
LETTER = {"J": "min(w, clip(w, 1 - low, 1 + high))*A"}  # Eq. 4 as it is printed


def gradient(name: str, case: TabularCase, advantages: Tensor | None = None, **changes: object) -> Tensor:
    objective = load_objective(name, changes)
    batch = case.batch(objective, advantages)
    return torch.autograd.grad(objective.loss(batch, objective.prepare(batch)).loss, case.logits)[0]


def alike(one: Tensor, other: Tensor, rtol: float = 1e-10) -> bool:
    return torch.allclose(one, other, rtol=rtol, atol=1e-14)


def cut(seed: int, length: int) -> TabularCase:
    """A case whose responses all have this length, in groups of three or eight."""
    case = make_case(seed)
    count = len(case.tokens) // length
    each = torch.arange(count)
    rewards, groups = (case.rewards[:8], case.group_ids[:8]) if length > 1 else ((each % 3 == 0).double(), each // 8)
    parts = {"rewards": rewards, "group_ids": groups, "uid": each, "finished": each >= 0}
    return replace(case, lengths=torch.full((count,), length), **parts)


ON_POLICY, OFF = make_case(1, drift=0.0), make_case(2)
B_OVER_N = int((OFF.lengths > 0).sum()) / int(OFF.lengths.sum())
SAME = [  # a row, what is changed in it, the case, another row with its changes, a factor
    # at the first mini-batch of a rollout all of these are one method; k3 to the old policy has no force there
    *(
        (name, {}, ON_POLICY, "grpo_dapo", {}, 1)
        for name in ("tepo_no_kl", "cispo", "reinforce", "prefix_is", "kl_cov")
    ),
    *((name, {}, ON_POLICY, "grpo_dapo", {}, 1) for name in ("tepo", "tepo_kl_all")),
    ("tepo_no_kl", {}, OFF, "gspo_token", {"average": "tokens", **BOUNDS}, 1),
    ("tepo_no_kl", {}, OFF, "seq_mean_token_sum", {}, B_OVER_N),
    ("tepo_no_kl", {}, OFF, "luspo", BOUNDS, B_OVER_N),
    # line 21 of Algorithm 1 is GSPO on another scale: then TEPO would be GSPO (identity 2)
    ("tepo_no_kl", LINE_21, OFF, "gspo", BOUNDS, B_OVER_N),
    *(("tepo_no_kl", {}, cut(2, 3), *other, 1) for other in (("gspo", BOUNDS), ("seq_mean_token_mean", {}))),
    # responses of one token have one ratio
    *((name, {}, cut(4, 1), "grpo_dapo", {}, 1) for name in ("tepo_no_kl", "prefix_is", "seq_mean_token_sum")),
    ("gspo", {}, make_case(3, drift=1e-5), "gspo_token", {}, 1),
]


@pytest.mark.parametrize(("name", "changes", "case", "other", "others", "factor"), SAME)
def test_rows_that_agree(name, changes, case, other, others, factor):
    assert alike(gradient(name, case, **changes), factor * gradient(other, case, **others))


def test_gspo_and_gspo_token_differ_where_the_advantage_varies():
    case = make_case(3, drift=1e-5)
    varying = torch.randn(len(case.tokens), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert not alike(gradient("gspo", case, varying), gradient("gspo_token", case, varying), rtol=1e-3)


def test_k1_pushes_every_token_down_even_on_policy():
    """k1 as a loss is a constant force of beta: the reading that explains the collapse at beta = 1 (A3)."""
    moved = gradient("tepo_kl_all", ON_POLICY, kl="d", beta=1) - gradient("grpo_dapo", ON_POLICY)
    assert alike(moved, torch.autograd.grad(ON_POLICY.chosen(ON_POLICY.logits).mean(), ON_POLICY.logits)[0])


def test_equal_rewards_leave_only_the_explicit_penalties():
    case = make_case(5)
    case.rewards = torch.ones_like(case.rewards)
    penalised = "grpo tepo_kl_all tepo_max_entropy tepo_min_entropy kl_cov dro dppo_squared_kl ipo"
    penalised += " kimi_k2_5 kimi_k2_5_log_ratio"
    shaped = "gtpo gtpo_v2 gtpo_clipped grpo_s grpo_s_v2 gdpo"  # told apart by entropies and lengths
    for name in set(names()) - set(shaped.split()):
        assert bool(gradient(name, case).any()) == (name in penalised.split()), name


@pytest.mark.parametrize(("sign", "same"), [(1, True), (-1, False)])
def test_eq_4_to_the_letter_is_ppo_where_the_advantage_is_positive(sign, same):
    case = make_case(6)
    positive = torch.rand(len(case.tokens), dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.1
    one, other = (gradient("tepo_no_kl", case, sign * positive, **change) for change in ({}, LETTER))
    assert alike(one, other, rtol=1e-10 if same else 1e-3) == same
