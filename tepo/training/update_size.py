"""How far an optimiser step moved the weights, from AdamW's own state: no copy of the weights is kept."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_CHUNK = 1 << 24  # numbers at a time: 64 MiB in float32


@torch.no_grad()
def squared_update(optimizer: torch.optim.AdamW, weights: Iterable[Tensor]) -> Tensor:
    """Sum of squares, float64 [], of what the last step of AdamW added to these tensors; call it after the step.

    AdamW adds -lr (u + decay old) with u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps), by which
    old = (new + lr u) / (1 - lr decay): so it added -lr (u + decay new) / (1 - lr decay). A tensor without a state had
    no gradient yet and did not move.
    """
    options, total = optimizer.param_groups[0], None
    for weight in weights:
        state = optimizer.state.get(weight)
        if state:
            one = _unscaled(weight, state, options)
            total = one if total is None else total + one
    scale = options["lr"] / (1 - options["lr"] * options["weight_decay"])
    return torch.zeros((), dtype=torch.float64) if total is None else total * scale**2


def _unscaled(weight: Tensor, state: dict[str, Any], options: dict[str, Any]) -> Tensor:
    """Sum of squares of u + decay new."""
    beta1, beta2 = options["betas"]
    steps = state["step"].to(weight.device, torch.float64)
    first, second = 1 - beta1**steps, (1 - beta2**steps).sqrt()
    sums = []
    parts = (part.flatten().split(_CHUNK) for part in (state["exp_avg"], state["exp_avg_sq"], weight.detach()))
    for mean, square, new in zip(*parts, strict=True):
        moved = mean / square.sqrt().mul_(first / second).add_(first * options["eps"])
        if options["weight_decay"]:
            moved = moved.add_(new, alpha=options["weight_decay"])
        sums.append(moved.square_().sum(dtype=torch.float64))
    return torch.stack(sums).sum()
