"""Distance that an optimiser step moved the weights, from AdamW's own state: no copy of the weights is kept."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

_CHUNK = 1 << 24  # numbers at a time: 64 MiB in float32
_BLOCK, ONE_IN = 1 << 18, 16  # in main memory: of a tensor every sixteenth block of so many numbers


@torch.no_grad()
def squared_update(optimizer: torch.optim.AdamW, weights: Iterable[Tensor], *, sampled: bool = False) -> Tensor:
    """Sum of squares, float64 [], of what the last step of AdamW added to these tensors; call it after the step.

    sampled: of tensors above 2^18 numbers a sixteenth stands for the whole. On a CPU all of it takes longer than AdamW.

    AdamW adds -lr (u + decay old) with u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps), by which
    old = (new + lr u) / (1 - lr decay): so it added -lr (u + decay new) / (1 - lr decay). t is the same for all that
    have a state; a tensor without one had no gradient yet and did not move.
    """
    moving = [(state, weight.detach()) for weight in weights if (state := optimizer.state.get(weight))]
    if not moving:
        return torch.zeros((), dtype=torch.float64)
    options, steps = optimizer.param_groups[0], moving[0][0]["step"].double()
    beta1, beta2 = options["betas"]
    first, second = 1 - beta1**steps, (1 - beta2**steps).sqrt()
    slope, eps, decay, norms = first / second, first * options["eps"], options["weight_decay"], []
    for state, weight in moving:
        tensors, size = (state["exp_avg"], state["exp_avg_sq"], weight), _BLOCK if sampled else _CHUNK
        parts: list[tuple[Tensor, ...]] = [tensors]
        if weight.numel() > size:  # a part of each at a time; of large ones a sample of the parts
            parts = list(zip(*(tensor.flatten().split(size) for tensor in tensors), strict=True))
            parts = parts[::ONE_IN] if sampled else parts
        sample_size = sum(new.numel() for *_, new in parts)
        for mean, square, new in parts:
            moved = square.sqrt().mul_(slope).add_(eps).reciprocal_().mul_(mean)
            norm = torch.linalg.vector_norm(moved.add_(new, alpha=decay) if decay else moved)
            norms.append(norm if sample_size == weight.numel() else norm * math.sqrt(weight.numel() / sample_size))
    scale = options["lr"] / (1 - options["lr"] * decay)
    return torch.stack(norms).double().square().sum() * scale**2
