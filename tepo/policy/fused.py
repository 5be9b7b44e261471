"""Log-prob, entropy and exact KL of a linear output layer, from hidden states and the output matrix."""

import torch
from torch import Tensor


def linear_statistics(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    need_entropy: bool = True,
    reference: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """log p(target) [N], entropy [N], KL(p || reference) [N] of p = softmax(hidden weight^T / temperature), in nats.

    hidden [N, H], weight [V, H], targets int64 [N], reference: log-probs [N, V].
    """
    logits = torch.nn.functional.linear(hidden, weight).float()
    logp = torch.log_softmax(logits / temperature if temperature != 1.0 else logits, dim=-1)
    logprobs = logp.gather(1, targets[:, None])[:, 0]
    entropies = None
    if need_entropy:
        kept = logp if entropy_gradient else logp.detach()
        entropies = -(kept.exp() * kept).sum(-1)
    full_kl = (logp.exp() * (logp - reference)).sum(-1) if reference is not None else None
    return logprobs, entropies, full_kl
