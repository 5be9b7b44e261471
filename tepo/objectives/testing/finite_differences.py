"""The derivative of a loss by differences, with all that it detaches held at its value."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

STEP = 1e-6  # of a logit, in float64: the rounding of a loss near 1 leaves ten digits of the slope


class _Detached(TorchFunctionMode):
    """Keeps the results of `detach` and of everything under `no_grad`; with `kept`, gives those back in their order.

    Whether a `no_grad` is open is noted as it is entered: torch also has no gradient inside a `Function`'s own forward,
    whose result does have one."""

    def __init__(self, kept: list[Tensor] | None = None):
        super().__init__()
        self.kept: list[Tensor] = [] if kept is None else kept
        self._replay = None if kept is None else iter(kept)
        self._open = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch._C._set_grad_enabled:
            self._open = not args[0]
        if not isinstance(result, Tensor) or not (self._open or func is Tensor.detach):
            return result
        if self._replay is None:
            self.kept.append(result.detach().clone())
            return result
        return next(self._replay).clone()


def slopes(loss: Callable[[Tensor], Tensor], at: Tensor, directions: Tensor, *, hold: bool) -> Tensor:
    """Central differences of `loss` at `at` [N, V] along directions [K, N, V], float64 [K].

    hold: what the loss detaches stays at its value at `at`, so that autograd's gradient has the same slopes."""
    with _Detached() as detached:
        loss(at)

    def value(point: Tensor) -> float:
        if not hold:
            return float(loss(point))
        with _Detached(detached.kept):
            return float(loss(point))

    found = [(value(at + STEP * one) - value(at - STEP * one)) / (2 * STEP) for one in directions]
    return torch.tensor(found, dtype=torch.float64)
