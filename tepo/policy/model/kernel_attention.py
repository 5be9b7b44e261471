"""Attention over the packed layout: torch's variable-length flash attention on GPU, or flash-attn-4's; SDPA elsewhere.

No import of transformers here: python -m perf.gpu checks this file on a machine that may lack it.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tepo.common.errors import UserError
from tepo.common.text import install_line
from tepo.policy.packing.block_layout import Attention

DENSE = 4096  # keys of a segment above which the masks of padded blocks on a GPU would take gigabytes a layer


@cache
def _varlen_attn() -> tuple[Callable[..., Any], bool] | None:
    """torch's variable-length attention, and whether it has an argument for grouped heads: that of torch 2.11 has
    none, and its kernel takes them unasked. None in a torch whose version of it has no windows yet."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    parameters = signature(varlen_attn).parameters.keys()
    return (varlen_attn, "enable_gqa" in parameters) if "window_size" in parameters else None


def _hindrance(query: Tensor) -> tuple[str, str] | None:
    """The reason that the flash kernel does not take tensors on a GPU, and a remedy; None where it does."""
    if query.dtype not in (torch.bfloat16, torch.float16):
        return f"it does not work in {str(query.dtype).removeprefix('torch.')}", "model.dtype=bfloat16"
    if _varlen_attn() is None:
        return f"torch {torch.__version__} has none with windows", "torch 2.11 or newer"
    if torch.cuda.get_device_capability(query.device) < (8, 0):
        return "this GPU is older than Ampere", "a GPU of compute capability 8.0 or more"
    if query.shape[-1] % 8 or query.shape[-1] > 256:
        return f"heads of {query.shape[-1]} numbers are not a multiple of 8 up to 256", "another model"
    return None


def varlen_available(query: Tensor) -> bool:
    """Tell whether flash attention takes these tensors: CUDA, Ampere or later, half precision, heads of a multiple of 8
    up to 256."""
    return query.is_cuda and _hindrance(query) is None


def attend(query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
    """[M, Hq, D] from query [M, Hq, D], key and value [M, Hk, D]: by `varlen` where it is available, else by
    `sdpa_blocks`.

    Raises UserError on a GPU where segments of more than `DENSE` keys would need dense masks.
    """
    if varlen_available(query):
        return varlen(query, key, value, how)
    if query.is_cuda and how.layout.longest_key > DENSE:
        reason, fix = _hindrance(query) or ("", "")
        what = f"sequences of {how.layout.longest_key} tokens need the variable-length kernel on a GPU, and {reason}"
        where = f"attention over more than {DENSE} tokens: dense masks would take gigabytes a layer"
        raise UserError(what, where=where, fix=f"{fix}, or sequences of at most {DENSE} tokens (train.max_new_tokens)")
    return sdpa_blocks(query, key, value, how)


def varlen(query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
    """[M, Hq, D] from query [M, Hq, D], key and value [M, Hk, D]. A segment's queries are its last keys, so the causal
    mask, which flash attention aligns at the end, is the right one."""
    kernel = _varlen_attn()
    assert kernel is not None, "ask varlen_available first"
    varlen_attn, names_groups = kernel
    layout, ragged = how.layout, how.layout.ragged
    keys, values = key.index_select(0, ragged.key_rows), value.index_select(0, ragged.key_rows)
    out = varlen_attn(
        query.contiguous(),
        keys,
        values,
        ragged.query_offsets,
        ragged.key_offsets,
        layout.longest,
        layout.longest_key,
        scale=how.scale,
        window_size=(-1 if how.window is None else how.window - 1, 0),
        **({"enable_gqa": query.shape[1] != key.shape[1]} if names_groups else {}),
    )
    assert isinstance(out, Tensor)
    return out


def flash4_hindrance(capability: tuple[int, int] | None) -> tuple[str, str] | None:
    """The reason that flash-attn-4 does not train on a GPU of this compute capability (None: no GPU), and a remedy;
    None where it does."""
    if capability is None or capability < (9, 0):  # its backward pass begins there (interface.py: _flash_attn_bwd)
        return "flash-attn-4 trains on GPUs of compute capability 9.0 or more", "leave flash4 out"
    if find_spec("flash_attn") is None or find_spec("flash_attn.cute") is None:
        return "flash-attn-4 is not installed", install_line("flash4")
    return None


def flash4(query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
    """As `varlen`, by the package flash-attn-4 (4.0.0b36). Where it is chosen, it has been checked on this GPU:
    `tepo.policy.kernel_check.check_kernels`."""
    from flash_attn.cute import flash_attn_varlen_func

    layout, ragged = how.layout, how.layout.ragged
    out, _ = flash_attn_varlen_func(
        query.contiguous(),
        key.index_select(0, ragged.key_rows),
        value.index_select(0, ragged.key_rows),
        cu_seqlens_q=ragged.query_offsets,
        cu_seqlens_k=ragged.key_offsets,
        max_seqlen_q=layout.longest,
        max_seqlen_k=layout.longest_key,
        softmax_scale=how.scale,
        causal=True,
        window_size=(None if how.window is None else how.window - 1, None),
    )
    assert isinstance(out, Tensor)
    return out


def sdpa_blocks(query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
    """The same with `scaled_dot_product_attention` on padded blocks, any device and precision."""
    layout, grouped = how.layout, query.shape[1] != key.shape[1]
    queries = query.index_select(0, layout.query_rows)
    keys, values = (tensor.index_select(0, layout.key_rows) for tensor in (key, value))
    outputs = []
    for block in layout.blocks:
        parts = queries[block.queries], keys[block.keys], values[block.keys]
        q, k, v = (part.unflatten(0, (block.size, -1)).transpose(1, 2) for part in parts)
        mask = block.mask(how.window, query.dtype)[:, None]
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=how.scale, enable_gqa=grouped)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, layout.query_slots)
