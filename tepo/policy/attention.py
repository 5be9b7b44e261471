"""Attention over the packed layout, for any Hugging Face decoder that takes an attention function.

Registered with transformers under the name `tepo_packed`. Called with a `packed_layout` each response attends to its
prompt and itself; called without one (generation, a plain forward) it is transformers' own SDPA with its usual masks,
so a model prepared here behaves as before everywhere else.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from tepo.errors import UserError
from tepo.policy.packing import Packed

NAME = "tepo_packed"


class Block:
    """Some queries and the keys they may see, padded to a rectangle: B rows of Q queries over K keys.

    query_rows [B*Q], key_rows [B*K]: rows of the flat input (padding repeats row 0). valid: positions of the real
    queries among the B*Q. allowed [B, 1, Q, K]: bool. distance [B, 1, Q, K]: position of the query minus that of the key.
    """

    def __init__(self, query_rows: np.ndarray, key_rows: np.ndarray, allowed: np.ndarray, distance: np.ndarray, device: torch.device):
        self.shape = allowed.shape
        flat = query_rows.reshape(-1)
        self.valid = torch.from_numpy(np.flatnonzero(flat >= 0)).to(device)
        self.rows = torch.from_numpy(flat[flat >= 0]).to(device)
        self.query_rows = torch.from_numpy(np.maximum(flat, 0)).to(device)
        self.key_rows = torch.from_numpy(np.maximum(key_rows.reshape(-1), 0)).to(device)
        self.allowed = torch.from_numpy(allowed).to(device)[:, None]
        self.distance = torch.from_numpy(distance).to(device)[:, None]


class Layout:
    """Attention structure of a micro-batch, shared by all layers."""

    def __init__(self, packed: Packed):
        device = packed.tokens.device
        self.blocks = [_block(packed.prompt_starts, packed.prompt_spans, device=device)]
        if packed.spans.any():
            present = np.flatnonzero(packed.spans)
            owner = packed.groups[present]
            prompts = packed.prompt_starts[owner], packed.prompt_spans[owner]
            self.blocks.append(_block(packed.starts[present], packed.spans[present], *prompts, device=device))
        order = torch.cat([block.rows for block in self.blocks])
        self.inverse = torch.empty_like(order)
        self.inverse[order] = torch.arange(len(order), device=device)


def _rectangle(starts: np.ndarray, spans: np.ndarray, right: bool) -> np.ndarray:
    """Row numbers [B, max span], -1 for padding, real entries pushed to the right or the left."""
    steps = np.arange(spans.max())
    offsets = steps - (spans.max() - spans)[:, None] if right else np.broadcast_to(steps, (len(spans), len(steps)))
    inside = (offsets >= 0) & (offsets < spans[:, None])
    return np.where(inside, starts[:, None] + offsets, -1)


def _block(starts: np.ndarray, spans: np.ndarray, prompt_starts: np.ndarray | None = None, prompt_spans: np.ndarray | None = None, *, device: torch.device) -> Block:
    """Segments attending causally to themselves, and fully to a prompt when there is one."""
    queries = _rectangle(starts, spans, right=False)
    steps = np.arange(queries.shape[1])
    own = steps[:, None] - steps[None, :]
    distance = np.broadcast_to(own, (len(starts), *own.shape))
    allowed, keys = distance >= 0, queries
    if prompt_starts is not None and prompt_spans is not None:
        prompt = _rectangle(prompt_starts, prompt_spans, right=True)
        to_prompt = steps[:, None] + (prompt.shape[1] - np.arange(prompt.shape[1]))[None, :]
        distance = np.concatenate([np.broadcast_to(to_prompt, (len(starts), *to_prompt.shape)), distance], axis=2)
        seen = np.broadcast_to((prompt >= 0)[:, None, :], (len(starts), len(steps), prompt.shape[1]))
        allowed, keys = np.concatenate([seen, allowed], axis=2), np.concatenate([prompt, keys], axis=1)
    return Block(queries, keys, np.ascontiguousarray(allowed), np.ascontiguousarray(distance), device)


def packed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0, scaling: float | None = None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention function in transformers' sense: query [1, Hq, M, D], key and value [1, Hk, M, D] -> [1, M, Hq, D]."""
    layout: Layout | None = kwargs.pop("packed_layout", None)
    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise UserError(f"{type(module).__name__} uses attention sinks or soft-capping, which packed training does not support", fix="use a Llama-like model")
    window = kwargs.get("sliding_window")
    flat = [tensor[0].transpose(0, 1).flatten(1) for tensor in (query, key, value)]  # [M, H*D], a view
    outputs = [_attend(block, *flat, heads=query.shape[1], key_heads=key.shape[1], scaling=scaling, window=window) for block in layout.blocks]
    rows = torch.cat(outputs).index_select(0, layout.inverse)
    return rows.view(1, query.shape[2], query.shape[1], -1), None


def _attend(block: Block, query: Tensor, key: Tensor, value: Tensor, *, heads: int, key_heads: int, scaling: float | None, window: int | None) -> Tensor:
    """Attention of one block, real queries only: [len(block.valid), Hq*D]."""
    size, queries, keys = block.shape
    q = query.index_select(0, block.query_rows).view(size, queries, heads, -1).transpose(1, 2)
    k = key.index_select(0, block.key_rows).view(size, keys, key_heads, -1).transpose(1, 2)
    v = value.index_select(0, block.key_rows).view(size, keys, key_heads, -1).transpose(1, 2)
    mask = block.allowed if window is None else block.allowed & (block.distance < window)
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=heads != key_heads)
    return out.transpose(1, 2).reshape(size * queries, -1).index_select(0, block.valid)


def prepare(model: PreTrainedModel) -> None:
    """Make a model use the packed attention (once; later calls do nothing)."""
    if model.config._attn_implementation != NAME:
        model.set_attn_implementation(NAME)


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
