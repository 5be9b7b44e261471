"""Batches written down by hand."""

from typing import Any

import torch
from torch import Tensor

from tepo.objectives import Loss, Objective, TokenBatch


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def by_hand(ratios: list[float], advantages: list[float], lengths: list[int] | None = None, **more: Any) -> TokenBatch:
    """A batch with the given token ratios and advantages; old log-probs -1; leaves are log-probs.

    One response unless lengths are given.
    """
    logprobs = (torch.log(tensor(*ratios)) - 1).requires_grad_()
    return TokenBatch(
        old_logprobs=torch.full_like(logprobs, -1.0).detach(),
        advantages=tensor(*advantages),
        lengths=torch.tensor([len(ratios)] if lengths is None else lengths),
        logprobs=logprobs,
        **more,
    )


def loss_of(objective: Objective, batch: TokenBatch, salt: int = 0) -> Loss:
    return objective.loss(batch, objective.prepare(batch, salt=salt))


def coefficients(objective: Objective, batch: TokenBatch) -> Tensor:
    """d J / d log pi times the number of tokens: the coefficient of grad log pi of a token-mean row [N]."""
    (gradient,) = torch.autograd.grad(loss_of(objective, batch).loss, batch.logprobs)
    return -gradient * len(batch.advantages)
