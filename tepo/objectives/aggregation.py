"""Aggregation axis: the weight of each token in the sum, from denominators of the whole mini-batch and all ranks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tepo.objectives.batch import Comm, TokenBatch, all_sum


@dataclass(frozen=True)
class TokenMean:
    """1/N for each of the N tokens. DAPO 3.3, TEPO Eq. 4."""


KINDS = {"token_mean": TokenMean}
Aggregation = TokenMean


def token_scale(options: Aggregation, batch: TokenBatch, totals: Tensor) -> Tensor:
    """Weight of each token [N]; they add up to the denominators over micro-batches and ranks. totals: float64 [2], tokens and
    non-empty sequences of the mini-batch."""
    tokens = totals[0].clamp(min=1).to(batch.advantages.dtype)
    return (1 / tokens).expand(batch.advantages.shape[0])


def count(batch: TokenBatch, comm: Comm | None) -> Tensor:
    """Tokens and non-empty sequences over all ranks, float64 [2]."""
    return all_sum(torch.stack([batch.lengths.sum(), (batch.lengths > 0).sum()]).double(), comm)
