"""Attention over the packed layout through torch's kernels: variable-length flash attention on GPU, SDPA elsewhere.

No import of transformers here: perf/gpu_fused.py checks this file on a bare machine.
"""

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tepo.policy.layout import Layout


@cache
def _varlen_attn() -> Callable[..., Any] | None:
    """torch's variable-length attention, None in a torch whose version of it has no windows or grouped heads yet."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if {"window_size", "enable_gqa"} <= signature(varlen_attn).parameters.keys() else None


def varlen_available(query: Tensor) -> bool:
    """Whether flash attention takes these tensors: CUDA, Ampere or later, half precision, heads of a multiple of 8 up to 256."""
    kernel = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    return kernel and _varlen_attn() is not None and torch.cuda.get_device_capability(query.device) >= (8, 0)


def varlen(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float, window: int | None) -> Tensor:
    """[M, Hq, D] from query [M, Hq, D], key and value [M, Hk, D]. A segment's queries are its last keys, so the causal
    mask, which flash attention aligns at the end, is the right one."""
    varlen_attn = _varlen_attn()
    assert varlen_attn is not None, "ask varlen_available first"
    ragged = layout.ragged
    keys, values = key.index_select(0, ragged.key_rows), value.index_select(0, ragged.key_rows)
    out = varlen_attn(
        query.contiguous(),
        keys,
        values,
        ragged.query_offsets,
        ragged.key_offsets,
        layout.longest,
        layout.longest_key,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(out, Tensor)
    return out


def sdpa_blocks(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float, window: int | None) -> Tensor:
    """The same with `scaled_dot_product_attention` on padded blocks, any device and precision."""
    padded = [query.index_select(0, layout.query_rows), key.index_select(0, layout.key_rows), value.index_select(0, layout.key_rows)]
    outputs = []
    for block in layout.blocks:
        slices = (block.queries, block.keys, block.keys)
        q, k, v = (tensor[part].unflatten(0, (block.size, -1)).transpose(1, 2) for tensor, part in zip(padded, slices, strict=True))
        mask = block.mask(window, query.dtype)[:, None]
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=query.shape[1] != key.shape[1])
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, layout.query_slots)
