"""Work on one tile of logits [n, v]: Triton kernels on GPU where Triton is there (`tile_triton`), torch elsewhere.

On CPU a tile is passed over in strips that stay in the cache.
"""

import functools
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tepo.policy.logprobs.tile_sums import GradientCoefficients, RunningSums

_STRIP = 2**18  # cells passed over at a time on CPU: 1 MiB of float32, and as much scratch
# torch.addmm before 2.10 adds half-precision products to nothing but half precision (pytorch pull request 167931).
_ADDMM_WIDENS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)


def product(hidden: Tensor, weight: Tensor, buffer: Tensor) -> Tensor:
    """hidden weight^T [n, v] at the start of `buffer`, accumulated and kept in the buffer's dtype."""
    out = buffer[: len(hidden) * len(weight)].view(len(hidden), len(weight))
    if hidden.dtype == buffer.dtype:
        return torch.mm(hidden, weight.t(), out=out)
    if hidden.is_cuda:
        return torch.mm(hidden, weight.t(), out_dtype=buffer.dtype, out=out)
    with _narrow_products(hidden.dtype):
        return torch.mm(hidden.to(buffer.dtype), weight.to(buffer.dtype).t(), out=out)


@contextmanager
def _narrow_products(dtype: torch.dtype) -> Iterator[None]:
    """On a CPU, have products of what was bfloat16 multiply bfloat16, which loses nothing, and sum in float32: with
    instructions for it that takes a third of the time."""
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # set on the module by hand
    before = matmul.fp32_precision
    if dtype == torch.bfloat16:
        matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def accumulate(logits: Tensor, state: RunningSums, targets: Tensor, scale: float) -> None:
    """Add a tile of logits (spoilt by this) times `scale` to the sums; `targets` count from the tile's first column."""
    if _triton(logits):
        _kernels().accumulate(logits, state, targets, scale)
        return
    inside = (targets >= 0) & (targets < logits.shape[1])
    picked = logits.gather(1, targets.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    state.target.add_(torch.where(inside, picked * scale, 0.0))
    scratch = torch.empty_like(logits[: _strip(logits)])
    for rows in _strips(logits):
        z, part = logits[rows], state.part(rows)
        if scale != 1.0:
            z.mul_(scale)
        maximum = torch.maximum(part.maximum, z.amax(1))
        e = torch.exp(z.sub_(maximum[:, None]), out=scratch[: len(z)])
        shift = part.maximum - maximum
        shrink = shift.exp()
        # shift is -inf before the first tile
        moved = torch.where(shrink > 0, (part.weighted + part.total * shift) * shrink, 0.0)
        part.weighted.copy_(moved + torch.linalg.vecdot(e, z))
        part.total.mul_(shrink).add_(e.sum(1))
        part.maximum.copy_(maximum)


def gradient(
    logits: Tensor, coefficients: GradientCoefficients, targets: Tensor, scale: float, dtype: torch.dtype
) -> Tensor:
    """The gradient of the loss with respect to a tile of unscaled logits; the logits are spoilt. On GPU in `dtype`,
    that of the inputs, for the products to come; on CPU as wide as the logits, since products there widen anyway."""
    if _triton(logits):
        return _kernels().gradient(logits, coefficients, targets, scale, dtype)
    inside = (targets >= 0) & (targets < logits.shape[1])
    scratch = torch.empty_like(logits[: _strip(logits)]) if coefficients.slope is not None else None
    for rows in _strips(logits):
        z, part = logits[rows], coefficients.part(rows)
        if scale != 1.0:
            z.mul_(scale)
        z.sub_(part.normaliser[:, None])
        if part.slope is None or scratch is None:
            z.exp_().mul_(part.offset[:, None])
        else:
            p = torch.exp(z, out=scratch[: len(z)])
            z.mul_(part.slope[:, None]).add_(part.offset[:, None]).mul_(p)
    at_target = torch.where(inside, coefficients.at_target, 0.0)[:, None]
    logits.scatter_add_(1, targets.clamp(0, logits.shape[1] - 1)[:, None], at_target)
    return logits.to(dtype) if logits.is_cuda else logits


class GradientSums:
    """Gradients of hidden [N, H] and weight [V, H], summed over tiles in float32 (float64); None where not needed.
    Tiles come with all rows of some columns before the next, so one slice of the weight's gradient is open."""

    def __init__(self, hidden: Tensor, weight: Tensor, for_hidden: bool, for_weight: bool, columns: int):
        wide = torch.promote_types(hidden.dtype, torch.float32)
        self._inputs = hidden, weight
        self._hidden = torch.empty_like(hidden, dtype=wide) if for_hidden else None
        self._weight = torch.empty_like(weight) if for_weight else None
        narrow = for_weight and weight.dtype != wide
        self._open = weight.new_empty(columns, weight.shape[1], dtype=wide) if narrow else None

    def add(self, dlogits: Tensor, rows: slice, columns: slice) -> None:
        """Multiply a tile [n, v], in the dtype of the inputs, on."""
        hidden, weight = self._inputs
        if self._hidden is not None:
            _add_product(self._hidden[rows], dlogits, weight[columns], first=columns.start == 0)
        if self._weight is not None:
            slot = self._weight[columns] if self._open is None else self._open[: dlogits.shape[1]]
            _add_product(slot, dlogits.t(), hidden[rows], first=rows.start == 0)
            if self._open is not None and rows.stop == len(hidden):
                self._weight[columns].copy_(slot)

    def results(self) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of hidden and weight, in their dtypes."""
        return None if self._hidden is None else self._hidden.to(self._inputs[0].dtype), self._weight


def _add_product(out: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    """out = left @ right, or out += with `first` False, accumulated in the dtype of `out`."""
    if not out.is_cuda:
        with _narrow_products(right.dtype):
            out.addmm_(left.to(out.dtype), right.to(out.dtype), beta=0.0 if first else 1.0)
    elif out.dtype == left.dtype:
        out.addmm_(left.to(out.dtype), right.to(out.dtype), beta=0.0 if first else 1.0)
    elif first:
        torch.mm(left, right, out_dtype=out.dtype, out=out)
    elif _ADDMM_WIDENS:
        torch.addmm(out, left, right, out_dtype=out.dtype, out=out)
    else:
        out.add_(torch.mm(left, right, out_dtype=out.dtype))


def _strip(logits: Tensor) -> int:
    """Rows of a strip: all on a GPU."""
    return len(logits) if logits.is_cuda else max(1, _STRIP // logits.shape[1])


def _strips(logits: Tensor) -> list[slice]:
    step = _strip(logits)
    return [slice(start, min(start + step, len(logits))) for start in range(0, len(logits), step)]


def _triton(logits: Tensor) -> bool:
    """Tell whether the Triton kernels take this tile: they compute in float32 on CUDA."""
    eligible = logits.is_cuda and logits.dtype == torch.float32 and importlib.util.find_spec("triton") is not None
    return eligible and kernels_run(logits.device)


@functools.cache
def kernels_run(device: torch.device) -> bool:
    """Tell whether a Triton kernel runs on the device; where it does not, a warning says why and what to install: slim
    images have no C compiler and no headers of Python's, with which Triton builds its driver."""
    try:
        tile, targets = torch.zeros(1, 1, device=device), torch.zeros(1, dtype=torch.int64, device=device)
        _kernels().accumulate(tile, RunningSums.empty(tile), targets, 1.0)
    except Exception as error:  # Triton's, the compiler's, the loader's
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        what = f"Triton's kernels do not run here ({why}): log-probs take torch's passes, which are slower"
        fix = "Triton builds its driver with a C compiler and Python.h: apt-get install gcc python3-dev"
        logging.getLogger(__name__).warning("%s. %s", what, fix)
        return False
    return True


def _kernels() -> Any:
    from tepo.policy.logprobs import tile_triton

    return tile_triton
