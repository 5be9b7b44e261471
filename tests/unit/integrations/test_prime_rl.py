"""What prime-rl gives a row, one response after the other (loss and gradient: integration/test_trainer_cells.py)."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.integrations.prime_rl import advantages, loss


@dataclass
class LossInputs:
    """The fields of prime-rl 0.8's, as its documentation lists them."""

    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None = field(default=None)


def responses() -> list[LossInputs]:
    """Four responses with their prompts, as prime-rl cuts them out of a packed sequence."""
    made, found = torch.Generator().manual_seed(1), []
    for length, prompt, advantage in ((7, 2, 1.0), (3, 1, -1.5), (9, 4, -0.5), (5, 0, 0.8)):
        old = -torch.rand(length + prompt, dtype=torch.float64, generator=made) * 2
        new = old + 0.5 * torch.randn(length + prompt, dtype=torch.float64, generator=made)
        mask = torch.arange(length + prompt) >= prompt
        found.append(LossInputs(new.requires_grad_(), old, None, torch.full_like(old, advantage), mask))
    return found


def test_token_weights():
    inputs = responses()[0]
    inputs.loss_weights = torch.linspace(0.1, 2, len(inputs.loss_mask), dtype=torch.float64)
    ratio = (inputs.trainer_logprobs - inputs.inference_logprobs).exp()
    terms = torch.minimum(ratio * inputs.advantages, ratio.clamp(0.8, 1.28) * inputs.advantages)
    out = loss(inputs)
    torch.testing.assert_close(out.loss, -(terms * inputs.loss_weights)[inputs.loss_mask].sum())
    assert all(value.dim() == 0 for value in out.metrics.values())
    assert "actor/pg_loss" in out.metrics


TOKENS = {"average": "tokens"}
PUNISH = {"r": "R - clip((T - 0.5*L)/(0.5*L), 0, 1)"}  # DAPO 3.4


def test_a_punishment_by_hand():
    """DAPO's over the last half of 8 tokens: 0, 0.5 and 1 for 4, 6 and 8 tokens; RLOO on what is left."""
    changes = {**TOKENS, **PUNISH, "A": "(r - mean_g(r))*G/(G - 1)"}
    found = advantages([1.0, 1.0, 1.0], "rloo", changes, lengths=[4, 6, 8], max_new_tokens=8)
    assert found == pytest.approx([0.75, 0.0, -0.75], abs=1e-15)


@pytest.mark.parametrize(
    ("name", "changes", "told", "what", "fix"),
    [
        ("opo", TOKENS, {}, "the lengths of the responses", "lengths=…"),
        ("grpo_dapo", {"A": "R/t"}, {"lengths": [1, 2]}, "an advantage for each token", "another row"),
    ],
)
def test_lengths_that_are_read_and_not_given(name, changes, told, what, fix):
    with pytest.raises(UserError, match=what) as caught:
        advantages([1.0, 0.0], name, changes, **told)
    assert fix in caught.value.fix


def test_an_empty_mask_logs_nothing():
    """A response without a token of the policy has a loss of 0 and no metrics, where its largest ratio was -inf."""
    inputs = responses()[0]
    inputs.loss_mask = torch.zeros_like(inputs.loss_mask)
    out = loss(inputs)
    assert (out.loss.item(), out.metrics) == (0, {})
