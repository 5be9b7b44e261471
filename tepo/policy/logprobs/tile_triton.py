"""The two passes over a tile of logits as Triton kernels:
one read for the sums, one read and one write for the gradient.

The products stay with cuBLAS; what is fused is everything between them. Same arguments and meaning as in `tile`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tepo.policy.logprobs.tile_sums import GradientCoefficients, RunningSums

_BLOCK = 4096  # most columns a program holds at a time


@triton.jit
def _accumulate(logits, targets, maximum, total, weighted, target, columns, scale, BLOCK: tl.constexpr):
    """One token: fold its columns into maximum, total and weighted, and pick the target's logit."""
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * columns
    m, s, t = tl.load(maximum + row), tl.load(total + row), tl.load(weighted + row)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        in_range = offsets < columns
        z = tl.load(base + offsets, mask=in_range, other=-float("inf")).to(tl.float32) * scale
        new = tl.maximum(m, tl.max(z, 0))
        shift = m - new  # -inf before the first columns
        shrink = tl.exp(shift)
        d = z - new
        e = tl.exp(d)
        t = tl.where(shrink > 0, (t + s * shift) * shrink, 0.0) + tl.sum(tl.where(in_range, e * d, 0.0), 0)
        s = s * shrink + tl.sum(e, 0)
        m = new
    tl.store(maximum + row, m)
    tl.store(total + row, s)
    tl.store(weighted + row, t)
    column = tl.load(targets + row)
    inside = (column >= 0) & (column < columns)
    tl.store(target + row, tl.load(base + column, mask=inside, other=0.0).to(tl.float32) * scale, mask=inside)


@triton.jit
def _gradient(
    logits, out, targets, normaliser, offset, slope, at_target, columns, scale, SLOPE: tl.constexpr, BLOCK: tl.constexpr
):
    """One token, BLOCK columns: p (offset + slope log p), and at_target on top where the target stands."""
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_range = offsets < columns
    z = tl.load(logits + row * columns + offsets, mask=in_range, other=0.0).to(tl.float32) * scale
    logp = z - tl.load(normaliser + row)
    factor = tl.load(offset + row)
    if SLOPE:
        factor += tl.load(slope + row) * logp
    value = tl.exp(logp) * factor
    value += tl.where(offsets == tl.load(targets + row), tl.load(at_target + row), 0.0)
    tl.store(out + row * columns + offsets, value.to(out.dtype.element_ty), mask=in_range)


def _block(columns: int) -> int:
    """Columns a program holds at a time:
    with 16k tokens a tile has 2,048, and half of a block of 4,096 would stand idle."""
    return min(_BLOCK, triton.next_power_of_2(columns))


def accumulate(logits: Tensor, state: RunningSums, targets: Tensor, scale: float) -> None:
    """See `tile.accumulate`; the logits stay as they are."""
    rows, columns = logits.shape
    sums = state.maximum, state.total, state.weighted, state.target
    _accumulate[(rows,)](logits, targets, *sums, columns, scale, BLOCK=_block(columns), num_warps=8)


def gradient(
    logits: Tensor, coefficients: GradientCoefficients, targets: Tensor, scale: float, dtype: torch.dtype
) -> Tensor:
    """See `tile.gradient`; in place where the dtype stays."""
    rows, columns = logits.shape
    out = logits if dtype == logits.dtype else torch.empty_like(logits, dtype=dtype)
    slope, block = coefficients.slope, _block(columns)
    row_coefficients = coefficients.normaliser, coefficients.offset, coefficients.offset if slope is None else slope
    arguments = (logits, out, targets, *row_coefficients, coefficients.at_target, columns, scale)
    launch = _gradient[(rows, triton.cdiv(columns, block))]
    launch(*arguments, SLOPE=slope is not None, BLOCK=block, num_warps=8)
    return out
