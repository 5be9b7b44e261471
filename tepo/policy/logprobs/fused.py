"""Log-prob, entropy and exact KL of a linear output layer, from hidden states and the output matrix.

Small problems take the direct path, which holds the log-probs of the vocabulary once.
Large ones never do: see `chunked`.
"""

from typing import Any

import torch
from torch import Tensor

from tepo.policy.logprobs import tile
from tepo.policy.logprobs.chunked import ChunkedStatistics, StatisticsOptions


def linear_statistics(
    hidden: Tensor, weight: Tensor, targets: Tensor, options: StatisticsOptions = StatisticsOptions()
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """log p(target) [N], entropy [N] and KL(p || reference) [N] of p = softmax(hidden weight^T / temperature).

    hidden [N, H] and weight [V, H] of one dtype, targets [N] int64. Results are float32 (float64 for float64 inputs),
    in nats. Gradients are exact; that of the entropy flows only with `entropy_gradient`, else the entropy comes
    detached. Products accumulate in float32 whatever the inputs. With a reference the direct path is taken at any size:
    the reference is as large as the logits.
    """
    small = (
        4 * len(weight) * max(len(hidden), 0 if hidden.is_cuda or hidden.dtype.itemsize >= 4 else hidden.shape[1])
        <= options.budget
    )  # half precision is widened on CPU
    if options.reference is not None or small or not len(hidden):
        logprobs, entropies, full_kl = DirectStatistics.apply(hidden, weight, targets, options)
    else:
        logprobs, entropies = ChunkedStatistics.apply(hidden, weight, targets, options)
        full_kl = None
    if not options.need_entropy:
        return logprobs, None, full_kl
    return logprobs, entropies if options.entropy_gradient else entropies.detach(), full_kl


class DirectStatistics(torch.autograd.Function):
    """log p(target) [N], entropy [N] or None, KL to a reference [N] or None;
    keeps the log-probs [N, V] for the backward."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, options: StatisticsOptions
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        temperature, reference = options.temperature, options.reference
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logits = tile.product(hidden, weight, hidden.new_empty(len(hidden) * len(weight), dtype=wide))
        if temperature != 1.0:
            logits.div_(temperature)
        logp = torch.log_softmax(logits, dim=1)
        probs = torch.exp(logp, out=logits)
        entropy = -torch.linalg.vecdot(probs, logp) if options.need_entropy else None
        kl = torch.linalg.vecdot(probs, logp - reference) if reference is not None else None
        ctx.save_for_backward(hidden, weight, targets, probs, logp, reference, entropy, kl)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logp.gather(1, targets[:, None])[:, 0], entropy, kl

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, probs, logp, reference, entropy, kl = ctx.saved_tensors
        of_logprob, of_entropy, of_kl = grads
        dlogits = torch.zeros_like(probs) if of_logprob is None else probs * -of_logprob[:, None]
        if of_logprob is not None:
            dlogits.scatter_add_(1, targets[:, None], of_logprob[:, None])
        if of_entropy is not None:  # dH/dz_v = -p_v (log p_v + H)
            dlogits.addcmul_(probs, (logp + entropy[:, None]).mul_(of_entropy[:, None]), value=-1.0)
        if of_kl is not None:  # dKL/dz_v = p_v (log p_v - log q_v - KL)
            dlogits.addcmul_(probs, (logp - reference).sub_(kl[:, None]).mul_(of_kl[:, None]))
        if ctx.temperature != 1.0:
            dlogits.div_(ctx.temperature)
        dlogits = dlogits.to(hidden.dtype)
        dhidden = torch.mm(dlogits, weight) if ctx.needs_input_grad[0] else None
        dweight = torch.mm(dlogits.t(), hidden) if ctx.needs_input_grad[1] else None
        return dhidden, dweight, None, None
