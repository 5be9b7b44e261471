"""Sums and means over the sequences of a flat batch (response tokens only, sequence after sequence, nothing padded)."""

from collections.abc import Sequence

import torch
from torch import Tensor


def sequence_of(lengths: Tensor, total: int) -> Tensor:
    """Index of the sequence of each token, int64 [total], from lengths [S] that sum to `total`
    (given, so that no device is asked)."""
    return torch.repeat_interleave(torch.arange(lengths.shape[0], device=lengths.device), lengths, output_size=total)


def starts_of(lengths: Tensor) -> Tensor:
    """Place of the first token of each sequence, int64 [S]."""
    return lengths.cumsum(0) - lengths


def positions_of(lengths: Tensor, sequence: Tensor) -> Tensor:
    """Place of each token in its sequence, from 0, int64 [N]; sequence: from `sequence_of`."""
    return torch.arange(sequence.shape[0], device=sequence.device) - starts_of(lengths)[sequence]


def token_indices(lengths: Tensor, sequences: Tensor, total: int | None = None) -> Tensor:
    """Indices of the tokens of the given sequences, in the order given: int64 [total]. total: the sum of their lengths;
    without it the device is asked."""
    chosen = lengths[sequences]
    total = int(chosen.sum()) if total is None else total
    shift = starts_of(lengths)[sequences] - starts_of(chosen)
    return torch.arange(total, device=lengths.device) + torch.repeat_interleave(shift, chosen, output_size=total)


def indices_of(lengths: Tensor, counts: Sequence[int], numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The sequences of these numbers as a tensor [K] and the indices of their tokens. counts: `lengths` on the host, so
    that a GPU is not waited for."""
    chosen = torch.tensor(numbers, dtype=torch.int64).to(lengths.device, non_blocking=True)
    return chosen, token_indices(lengths, chosen, sum(counts[number] for number in numbers))


def segment_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """Sum of each sequence: values [N], lengths [S] -> float64 [S]; 0 for an empty one. Deterministic on every
    device."""
    return torch.segment_reduce(values.double(), "sum", lengths=lengths, initial=0, unsafe=True)


def segment_max(values: Tensor, lengths: Tensor) -> Tensor:
    """Largest value of each sequence: values [N], lengths [S] -> [S]; -inf for an empty one."""
    return torch.segment_reduce(values, "max", lengths=lengths, initial=-torch.inf, unsafe=True)


def total(values: Tensor) -> Tensor:
    """Sum of all values, added up in float64, in their own dtype."""
    return values.sum(dtype=torch.float64).to(values.dtype)


def _spread(values: Tensor, lengths: Tensor, sequence: Tensor, mean: bool) -> Tensor:
    sums = segment_sum(values, lengths)
    return (sums / lengths.clamp(min=1) if mean else sums).to(values.dtype).index_select(0, sequence)


class _Spread(torch.autograd.Function):
    """The sum or mean of each sequence on each of its tokens. A symmetric map, so its backward pass is itself."""

    @staticmethod
    def forward(ctx, values: Tensor, lengths: Tensor, sequence: Tensor, mean: bool) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(lengths, sequence)
        ctx.mean = mean
        return _spread(values, lengths, sequence, mean)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        lengths, sequence = ctx.saved_tensors
        return _spread(gradient, lengths, sequence, ctx.mean), None, None, None


def sequence_sum(values: Tensor, lengths: Tensor, sequence: Tensor) -> Tensor:
    """Sum over each token's sequence: values [N] -> [N], differentiable."""
    return _Spread.apply(values, lengths, sequence, False)


def sequence_mean(values: Tensor, lengths: Tensor, sequence: Tensor) -> Tensor:
    """Mean over each token's sequence: values [N] -> [N], differentiable."""
    return _Spread.apply(values, lengths, sequence, True)


def prefix_mean(values: Tensor, lengths: Tensor, sequence: Tensor) -> Tensor:
    """Mean over the tokens of the sequence up to and including each token: values [N] -> [N], differentiable. One
    cumulative sum over the flat batch in float64, so what stands before a sequence costs it no precision."""
    if not values.shape[0]:
        return values
    running = values.double().cumsum(0)
    before = torch.cat([running.new_zeros(1), running])[starts_of(lengths)[sequence]]
    return ((running - before) / (positions_of(lengths, sequence) + 1)).to(values.dtype)
