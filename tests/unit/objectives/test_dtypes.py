from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tepo.objectives import Groups, TokenBatch, load_objective, names
from tepo.objectives.batch import PER_TOKEN
from tepo.objectives.testing.case import make_case

HALF = [torch.bfloat16, torch.float16]
SEQUENCES, TOKENS = 4, 4096


def long_groups(dtype: torch.dtype) -> Groups:
    """Four responses of 4,096 tokens, two of them right, one cut."""
    lengths = torch.full((SEQUENCES,), TOKENS)
    entropies = torch.rand(SEQUENCES * TOKENS, generator=torch.Generator().manual_seed(1)).to(dtype)
    rewards = torch.tensor([1, 0, 1, 0], dtype=dtype)
    ids, ended, values = torch.zeros(SEQUENCES, dtype=torch.int64), lengths < TOKENS + 1, torch.full((SEQUENCES,), 0.25)
    return Groups(rewards, ids, lengths, entropies, ended, TOKENS, values=values)


def long_batch(dtype: torch.dtype, advantages: Tensor) -> TokenBatch:
    """Their tokens, on-policy."""
    groups, generator = long_groups(dtype), torch.Generator().manual_seed(2)
    old, full_kl = (torch.rand(SEQUENCES * TOKENS, generator=generator).to(dtype) for _ in range(2))
    entropies, old = groups.old_entropies.to(dtype), -2 * old
    values = {"entropies": entropies * 0.99, "old_entropies": entropies, "sampler_logprobs": old, "full_kl": full_kl}
    shared = {name: getattr(groups, name) for name in ("lengths", "group_ids", "finished", "max_new_tokens")}
    whole = torch.arange(SEQUENCES)
    values |= {"initial_logprobs": old - 0.125, "teacher_logprobs": old + 0.25}
    return TokenBatch(old, advantages, logprobs=old, uid=whole, **values, **shared)


def value_and_gradient(name: str, batch: TokenBatch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    objective, leaf = load_objective(name), batch.logprobs.to(dtype).requires_grad_()
    batch = replace(batch, logprobs=leaf)
    loss = objective.loss(batch, objective.prepare(batch, salt=1)).loss
    return loss.detach().double(), torch.autograd.grad(loss, leaf)[0]


def in_float64(batch: TokenBatch) -> TokenBatch:
    """The same numbers."""
    values = {name: getattr(batch, name) for name in PER_TOKEN}
    return replace(batch, **{name: value.double() for name, value in values.items() if value is not None})


@pytest.mark.parametrize("name", names())
def test_rewards_of_any_dtype(name):
    given = make_case(0).groups()
    objective = load_objective(name)
    expected = objective.advantages(replace(given, rewards=given.rewards.float()))
    assert (expected.abs().max() > 0) == (name != "distillation")  # whose weight of the reward is 0
    for dtype in (torch.int64, torch.uint8, torch.bool, *HALF):
        found = objective.advantages(replace(given, rewards=given.rewards.to(dtype)))
        assert found.dtype == torch.float32, dtype
        assert torch.equal(found, expected), dtype


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_of_4096_tokens(name, dtype):
    """On-policy, as the first mini-batch of a step: loss and gradient are those of the same numbers in float64."""
    batch = long_batch(dtype, load_objective(name).advantages(long_groups(dtype)))
    loss, gradient = value_and_gradient(name, batch, dtype)
    expected, slope = value_and_gradient(name, in_float64(batch), torch.float64)
    assert gradient.dtype == dtype
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    # float16 holds nothing below 6e-8: the gradient's own dtype is the limit
    torch.testing.assert_close(gradient.double(), slope, rtol=1e-2, atol=6e-8)


@pytest.mark.parametrize("dtype", HALF)
def test_log_0_in_half_precision(dtype):
    """The floor that stands for log 0 is beyond float16's range."""
    logprobs = torch.tensor([-torch.inf, -1.0], dtype=dtype).requires_grad_()
    batch = TokenBatch(torch.tensor([-1.0, -1.0], dtype=dtype), torch.tensor([1.0, 1.0]), torch.tensor([2]), logprobs)
    objective = load_objective("grpo_dapo")
    loss = objective.loss(batch, objective.prepare(batch)).loss
    assert loss.isfinite()
    assert torch.autograd.grad(loss, logprobs)[0].tolist() == [0.0, -0.5]
