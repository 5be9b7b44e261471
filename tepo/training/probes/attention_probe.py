"""Attention over packed segments against plain attention, sequence by sequence, in float32: forward and backward.

Needs torch alone. The bound is twice the error that torch's own SDPA makes in bfloat16 on the same sequences.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tepo.policy.model.kernel_attention import attend, varlen_available
from tepo.policy.packing.block_layout import Attention, SegmentLayout
from tepo.policy.packing.packing import Packed, pack
from tepo.sampling.embedded.decode_forward import KERNELS
from tepo.training.probes.probe_record import Figure
from tepo.training.probes.timing import ceiling, seconds

_TENSORS = ("output", "gradient of queries", "gradient of keys", "gradient of values")


@dataclass(frozen=True)
class Case:
    """Groups of one prompt and some responses, lengths in tokens; heads of queries and of keys, their size; the
    window."""

    name: str
    groups: tuple[tuple[int, tuple[int, ...]], ...]
    heads: tuple[int, int] = (28, 4)
    width: int = 128
    window: int | None = None


_MIXED = ((300, (1900, 700, 1200, 256)), (120, (350, 1024, 640, 90)))
SIZES = {
    "small": (
        Case("small", ((6, (9, 20)), (3, (5,))), (4, 2), 16),
        Case("small, window", ((6, (20,)),), (4, 2), 16, 7),
    ),
    "short": (Case("mixed lengths", _MIXED), Case("window 512", _MIXED, window=512)),
    "full": (
        Case("mixed lengths", _MIXED),
        Case("8k, shared prompt", ((512, (8192, 8192, 4096)),)),
        Case("8k, window 1024", ((512, (8192, 8192)),), window=1024),
    ),
}


def figures(device: str, cases: tuple[Case, ...]) -> Iterator[Figure]:
    """Errors and speed of each case."""
    best = ceiling((8192, 8192, 8192) if device == "cuda" else (256, 256, 256), device)
    for case in cases:
        groups = [(np.zeros(prompt), [np.zeros(n) for n in responses]) for prompt, responses in case.groups]
        packed = pack(groups).to(device)
        torch.manual_seed(0)
        count, (queries, keys) = len(packed.tokens), case.heads
        inputs = [torch.randn(count, heads, case.width, device=device).bfloat16() for heads in (queries, keys, keys)]
        weight = torch.randn(count, queries, case.width, device=device)
        how = Attention(SegmentLayout(packed), case.width**-0.5, case.window)
        ours, plain = partial(attend, how=how), partial(sequences, packed=packed, how=how)
        values, exact = _run(ours, inputs, weight), _run(plain, [tensor.float() for tensor in inputs], weight)
        rounded = _run(plain, inputs, weight)
        path = "varlen" if varlen_available(inputs[0]) else "blocks"
        for name, one, right, other in zip(_TENSORS, values, exact, rounded, strict=True):
            error, bound = _error(one, right), 2 * _error(other, right)
            yield Figure(f"{case.name}: error, {name}", "relative", error, bound, "<=", path)
        taken = seconds(partial(_run, ours, inputs, weight), device)
        # queries times the keys that each sees
        before = np.concatenate([np.zeros_like(packed.prompt_spans), packed.prompt_spans[packed.groups]])
        spans = np.concatenate([packed.prompt_spans, packed.spans])
        seen = [np.arange(p + 1, p + n + 1) for p, n in zip(before, spans, strict=True)]
        pairs = float(sum(np.minimum(keys, case.window or keys.max(initial=0)).sum() for keys in seen))
        rate = 3.5 * 4 * queries * case.width * pairs / taken  # the backward has 2.5 times the products of the forward
        note = f"{1e3 * taken:.2f} ms"
        yield Figure(f"{case.name}: forward + backward", "TFLOP/s", rate / 1e12, best / 1e12, note=note)


def sequences(query: Tensor, key: Tensor, value: Tensor, packed: Packed, how: Attention) -> Tensor:
    """[M, Hq, D]: every prompt and every response with its prompt by itself, through SDPA with all heads written
    out."""
    key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], 1) for tensor in (key, value))
    out = torch.zeros_like(query)
    prompts = [np.arange(s, s + n) for s, n in zip(packed.prompt_starts, packed.prompt_spans, strict=True)]
    owners = zip(packed.starts, packed.spans, packed.groups, strict=True)
    responses = [(np.arange(start, start + span), prompts[group]) for start, span, group in owners if span]
    for own, before in [(prompt, prompt[:0]) for prompt in prompts] + responses:
        rows = torch.from_numpy(np.concatenate([before, own])).to(query.device)
        q, k, v = (tensor[rows].transpose(0, 1)[None] for tensor in (query, key, value))
        mask = None
        if how.window:  # [1, 1, L, L]: true where a key is at most `window - 1` back
            ones = torch.ones(len(rows), len(rows), dtype=torch.bool, device=query.device)
            mask = (ones.tril() & ones.triu(1 - how.window))[None, None]
        with sdpa_kernel(KERNELS):
            done = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=how.scale)
        out = out.index_copy(0, rows[len(before) :], done[0].transpose(0, 1)[len(before) :])
    return out


def _run(function: Callable[..., Tensor], inputs: list[Tensor], weight: Tensor) -> list[Tensor]:
    """Output and gradients of a weighted sum of it."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad((out * weight.to(out.dtype)).sum(), leaves)]


def _error(value: Tensor, exact: Tensor) -> float:
    return float((value.float() - exact).norm() / exact.norm())
