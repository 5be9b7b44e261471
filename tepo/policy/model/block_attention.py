"""Block attention with its own backward, for short segments on CPU.

Batched products over padded blocks, the query heads of a key head folded into the rows of one product: at laptop sizes
faster than `scaled_dot_product_attention`, whose CPU kernel works on tiles larger than a response
(python -m perf update).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tepo.policy.packing.block_layout import Attention, SegmentBlock


class Heads(NamedTuple):
    """Heads of the attention."""

    query: int  # number of query heads
    key: int  # number of key heads
    size: int  # of one


class BlockAttention(torch.autograd.Function):
    """query [M, Hq, D], key and value [M, Hk, D] -> [M, Hq, D]."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
        layout, heads = how.layout, Heads(query.shape[1], key.shape[1], query.shape[2])
        q, k, v = _take(query, layout.query_rows), _take(key, layout.key_rows), _take(value, layout.key_rows)
        out = torch.empty_like(q)
        weights = []
        for block in layout.blocks:
            qb, kb, vb = _fold(q, block, heads), _split(k, block, heads), _split(v, block, heads)
            # masked scores [B*Hk, Q*g, K]; rows are (query, head of the key head), query first
            mask = block.mask(how.window, qb.dtype)[:, None, :, None]
            mask = mask.expand(-1, heads.key, -1, qb.shape[1] // block.width, -1).reshape(len(qb), -1, kb.shape[1])
            weight = torch.softmax(torch.baddbmm(mask, qb, kb.transpose(1, 2), alpha=how.scale), dim=-1)
            weights.append(weight)
            _fold_product(weight, vb, block, heads, out)
        ctx.save_for_backward(q, k, v, *weights)
        ctx.how, ctx.heads, ctx.shapes = how, heads, (query.shape, key.shape)
        return out.index_select(0, layout.query_slots).view(query.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *weights = ctx.saved_tensors
        layout, heads, (query_shape, key_shape) = ctx.how.layout, ctx.heads, ctx.shapes
        grad = _take(grads[0], layout.query_rows).index_fill_(0, layout.padding, 0.0)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for block, weight in zip(layout.blocks, weights, strict=True):
            gb, qb = _fold(grad, block, heads), _fold(q, block, heads)
            kb, vb = _split(k, block, heads), _split(v, block, heads)
            _split_product(weight.transpose(1, 2), gb, block, heads, dv)
            ds = torch._softmax_backward_data(torch.bmm(gb, vb.transpose(1, 2)), weight, -1, weight.dtype)
            _fold_product(ds, kb, block, heads, dq)
            _split_product(ds.transpose(1, 2), qb, block, heads, dk)
        dk.mul_(ctx.how.scale)
        query_grad = dq.index_select(0, layout.query_slots).mul_(ctx.how.scale)
        # of the flat key rows: their own segment's, and for prompts that of every response
        key_grad, value_grad = (
            padded.index_select(0, layout.key_slots)
            .index_add_(0, layout.prompt_rows, padded.index_select(0, layout.prompt_slots))
            .view(key_shape)
            for padded in (dk, dv)
        )
        return query_grad.view(query_shape), key_grad, value_grad, None


def _take(tensor: Tensor, rows: Tensor) -> Tensor:
    """Padded rows [R, H*D] of [M, H, D]."""
    return tensor.reshape(len(tensor), -1).index_select(0, rows)


def _fold(rows: Tensor, block: SegmentBlock, heads: Heads) -> Tensor:
    """The block's query rows as [B*Hk, Q*g, D], g = Hq / Hk; a view when Hk is 1."""
    rows = rows[block.queries].view(block.size, block.width, heads.key, heads.query // heads.key, heads.size)
    return rows.transpose(1, 2).reshape(block.size * heads.key, -1, heads.size)


def _fold_product(left: Tensor, right: Tensor, block: SegmentBlock, heads: Heads, out: Tensor) -> None:
    """Write left @ right, [B*Hk, Q*g, D], into the block's query rows of `out`, without a copy when Hk is 1."""
    if heads.key == 1:
        torch.bmm(left, right, out=out[block.queries].view(block.size, -1, heads.size))
    else:
        product = torch.bmm(left, right).view(block.size, heads.key, block.width, -1, heads.size)
        out[block.queries].view(block.size, block.width, heads.key, -1, heads.size).copy_(product.transpose(1, 2))


def _split(rows: Tensor, block: SegmentBlock, heads: Heads) -> Tensor:
    """The block's key rows as [B*Hk, K, D]; a view when Hk is 1."""
    rows = rows[block.keys].view(block.size, -1, heads.key, heads.size)
    return rows.transpose(1, 2).reshape(block.size * heads.key, -1, heads.size)


def _split_product(left: Tensor, right: Tensor, block: SegmentBlock, heads: Heads, out: Tensor) -> None:
    """Write left @ right, [B*Hk, K, D], into the block's key rows of `out`, without a copy when Hk is 1."""
    if heads.key == 1:
        torch.bmm(left, right, out=out[block.keys].view(block.size, -1, heads.size))
    else:
        product = torch.bmm(left, right).view(block.size, heads.key, -1, heads.size)
        out[block.keys].view(block.size, -1, heads.key, heads.size).copy_(product.transpose(1, 2))
