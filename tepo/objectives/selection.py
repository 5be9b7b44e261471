"""Selection of tokens in a mini-batch: covariance of log-prob and advantage, top k over all ranks, stateless draws."""

import torch
from torch import Tensor

from tepo.common.randomness import mix, uniform
from tepo.objectives.batch import Collectives, TokenBatch, all_sum, gather


def largest(values: Tensor, comm: Collectives | None) -> Tensor:
    """The largest of values [K] over all ranks; -inf where there is none."""
    own = values.max() if values.shape[0] else values.new_tensor(-torch.inf)
    return gather(own.reshape(1), comm).max()


def covariance(logprobs: Tensor, advantages: Tensor, comm: Collectives | None) -> Tensor:
    """(log pi - mean) (A - mean) of each token, means over all tokens and ranks: float64 [N]. Cui et al. 2505.22617 Eq.
    10."""
    values = torch.stack([logprobs.detach().double(), advantages.double()])
    sums = torch.cat([values.sum(1), values.new_tensor([float(values.shape[1])])])
    totals = all_sum(sums, comm)
    centred = values - (totals[:2] / totals[2].clamp(min=1))[:, None]
    return centred[0] * centred[1]


def draws(batch: TokenBatch, salt: int) -> Tensor:
    """One uniform number per token, float64 [N]:
    a function of (salt, sequence's uid, position) alone, whatever the order, split or rank."""
    uid = batch.want("uid", "a selection of tokens")
    keys = mix(uid, torch.tensor(salt, dtype=torch.int64, device=uid.device))
    return uniform(keys[batch.sequence], batch.positions)


def order(batch: TokenBatch, comm: Collectives | None) -> Tensor:
    """Place of each token by its sequence's uid and then by its position, over all ranks, int64 [N]: ascending, with
    gaps."""
    uid = batch.want("uid", "a selection of tokens")
    return torch.searchsorted(gather(uid, comm).unique(), uid)[batch.sequence] * 2**32 + batch.positions


def top_tokens(scores: Tensor, ties: Tensor, count: int, comm: Collectives | None) -> Tensor:
    """Mask of the `count` largest scores over all ranks, bool [N]; among equal scores the smallest ties win. A score of
    -inf is never chosen. scores: float64 [N]; ties: no two alike [N]."""
    order = _best_first(scores, ties)[:count]
    all_scores, all_ties = gather(scores[order], comm), gather(ties[order], comm)
    if not all_scores.shape[0]:
        return torch.zeros_like(scores, dtype=torch.bool)
    last = _best_first(all_scores, all_ties)[:count][-1]
    chosen = (scores > all_scores[last]) | ((scores == all_scores[last]) & (ties <= all_ties[last]))
    return chosen & (scores > -torch.inf)


def _best_first(scores: Tensor, ties: Tensor) -> Tensor:
    order = torch.argsort(ties, stable=True)
    return order[torch.argsort(scores[order], descending=True, stable=True)]
