"""The two halves of a Llama-like layer around its attention, each with its own backward, for CPUs.

A pass over all tokens of a micro-batch goes to memory, and on many machines such passes cost more than the matrix
products. So tokens go through a half layer in tiles that stay in the cache, forward and backward; written out is only
what the backward reads again: the inputs, the sum after attention, the gate and up projections.

The weight of a norm is folded into the projection that follows. With the normed input xhat and G = dy^T xhat, the
gradient of the projection is G * norm and that of the norm is the column sum of G * weight: no pass over tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_TILE = 2**18  # numbers of the widest buffer of a tile: 1 MiB in float32


class Projection(NamedTuple):
    """Settings of `Project`. eps: of the norm. heads, kv_heads, head_dim: of the attention. turns: the rotary
    embedding, complex [M, head_dim / 2], or None to leave queries and keys unturned."""

    eps: float
    heads: int
    kv_heads: int
    head_dim: int
    turns: Tensor | None

    @property
    def widths(self) -> list[int]:
        """Numbers of all queries, keys and values of a token."""
        return [self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim]


class Project(torch.autograd.Function):
    """Norm, projections and rotary embedding: x [M, H] -> queries [M, Hq * D], keys and values [M, Hk * D].

    The two halves of a query or key head come interleaved, so that neighbours are the complex numbers that the rotary
    embedding turns. The products of queries and keys stay the same.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: Projection, norm: Tensor, *parts: Tensor | None) -> tuple[Tensor, ...]:
        """parts: the weights of queries, keys and values, then their biases (None without)."""
        weight, bias = _merged(parts[:3], how), _merged(parts[3:], how)
        assert weight is not None
        weight = weight.t().contiguous()
        folded, scale, out = weight * norm[:, None], x.new_empty(len(x), 1), x.new_empty(len(x), weight.shape[1])
        for x_, scale_, out_, turns_ in _tiles(weight.shape[1], x, scale, out, how.turns):
            xhat = _normed(x_, how.eps, scale_)
            torch.mm(xhat, folded, out=out_) if bias is None else torch.addmm(bias, xhat, folded, out=out_)
            _turn(out_, how, turns_)
        ctx.save_for_backward(x, scale, weight, norm)
        ctx.how, ctx.biased = how, bias is not None
        return tuple(out.split(how.widths, dim=1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, scale, weight, norm = ctx.saved_tensors
        how, folded, dx = ctx.how, (weight * norm[:, None]).t(), torch.empty_like(x)
        product, dbias = torch.zeros_like(weight), torch.zeros_like(weight[0])
        turns = None if how.turns is None else how.turns.conj().resolve_conj()
        for x_, scale_, dx_, turns_, *grads_ in _tiles(len(folded), x, scale, dx, turns, *grads):
            dy, xhat = torch.cat(grads_, dim=1), x_ * scale_
            _turn(dy, how, turns_)
            product.addmm_(xhat.t(), dy)
            if ctx.biased:
                dbias += dy.sum(0)
            torch.mul(_through_norm(dy @ folded, xhat), scale_, out=dx_)
        dweights = _parted((product * norm[:, None]).t(), how)
        dbiases = _parted(dbias, how) if ctx.biased else (None, None, None)
        return dx, None, (product * weight).sum(1), *dweights, *dbiases


class Finish(torch.autograd.Function):
    """Output projection, residual, norm, SwiGLU, residual: x [M, H] and attended [M, Hq * D] -> [M, H]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, attended: Tensor, eps: float, keep: bool, *weights: Tensor) -> Tensor:
        """keep: for a backward. weights: output projection, norm, gate, up, down."""
        out, norm, gate, up, down = weights
        weight, width = torch.cat([gate, up]).t().contiguous(), len(gate)
        folded, out, down = weight * norm[:, None], out.t().contiguous(), down.t().contiguous()
        middle, scale, result = torch.empty_like(x), x.new_empty(len(x), 1), torch.empty_like(x)
        gate_up = x.new_empty(len(x), 2 * width) if keep else None
        for x_, attended_, middle_, scale_, result_, gate_up_ in _tiles(
            2 * width, x, attended, middle, scale, result, gate_up
        ):
            torch.addmm(x_, attended_, out, out=middle_)
            xhat = _normed(middle_, eps, scale_)
            gate_up_ = torch.mm(xhat, folded) if gate_up_ is None else torch.mm(xhat, folded, out=gate_up_)
            torch.addmm(middle_, F.silu(gate_up_[:, :width]).mul_(gate_up_[:, width:]), down, out=result_)
        if keep:
            ctx.save_for_backward(attended, middle, scale, gate_up, out, norm, weight, down)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        attended, middle, scale, gate_up, out, norm, weight, down = ctx.saved_tensors
        folded, width, product = (weight * norm[:, None]).t(), len(down), torch.zeros_like(weight)
        dout, ddown = torch.zeros_like(out.t()), torch.zeros_like(down.t())
        dx, dattended = torch.empty_like(middle), torch.empty_like(attended)
        for grad, attended_, middle_, scale_, gate_up_, dx_, dattended_ in _tiles(
            2 * width, grads[0], attended, middle, scale, gate_up, dx, dattended
        ):
            g, u, dgate_up = gate_up_[:, :width], gate_up_[:, width:], torch.empty_like(gate_up_)
            dactivated, activated = grad @ down.t(), F.silu(g)
            torch.mul(dactivated, activated, out=dgate_up[:, width:])
            ddown.addmm_(grad.t(), activated.mul_(u))
            torch.ops.aten.silu_backward.grad_input(dactivated.mul_(u), g, grad_input=dgate_up[:, :width])
            xhat = middle_ * scale_
            product.addmm_(xhat.t(), dgate_up)
            torch.addcmul(grad, _through_norm(dgate_up @ folded, xhat), scale_, out=dx_)
            torch.mm(dx_, out.t(), out=dattended_)
            dout.addmm_(dx_.t(), attended_)
        dgate, dup = (product * norm[:, None]).t().split(width)
        return dx, dattended, None, None, dout, (product * weight).sum(1), dgate, dup, ddown


class Norm(torch.autograd.Function):
    """RMS norm over the last dimension of x [N, H], with a weight [H]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, weight: Tensor) -> Tensor:
        scale = x.new_empty(len(x), 1)
        xhat = _normed(x, eps, scale)
        ctx.save_for_backward(xhat, scale, weight)
        return xhat * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        xhat, scale, weight = ctx.saved_tensors
        dx = _through_norm(grads[0] * weight, xhat).mul_(scale)
        return dx, None, (grads[0] * xhat).sum(0)


class Turn(torch.autograd.Function):
    """The rotary embedding of interleaved heads [M, heads * D] by complex [M, D / 2]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, turns: Tensor) -> Tensor:
        ctx.save_for_backward(turns)
        return _turned(x, turns)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _turned(grads[0], ctx.saved_tensors[0].conj()), None


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(len(x), -1, turns.shape[1], 2))
    return torch.view_as_real(pairs * turns[:, None]).reshape(x.shape)


def _turn(out: Tensor, how: Projection, turns: Tensor | None) -> None:
    """Turn the queries and keys of a tile of projections in place."""
    if turns is not None:
        heads = out[:, : sum(how.widths[:2])].unflatten(1, (-1, how.head_dim // 2, 2))
        torch.view_as_complex(heads).mul_(turns[:, None])


def _tiles(width: int, *tensors: Tensor | None) -> Sequence[tuple[Any, ...]]:
    """Tensors of equal length in tiles of rows, None as it is. width: of the widest buffer that a tile needs."""
    step, tokens = max(_TILE // width, 64), len(next(tensor for tensor in tensors if tensor is not None))
    count = -(-tokens // step)
    return list(zip(*([None] * count if tensor is None else tensor.split(step) for tensor in tensors), strict=True))


def _normed(x: Tensor, eps: float, scale: Tensor) -> Tensor:
    """x over the root of its mean square; the factor is written to `scale` [n, 1]."""
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    torch.rsqrt(length.square_().div_(x.shape[1]).add_(eps), out=scale)
    return x * scale


def _through_norm(grad: Tensor, xhat: Tensor) -> Tensor:
    """From the gradient of a norm's output [n, H], in place, that of its input over its scale."""
    mean = torch.linalg.vecdot(grad, xhat).div_(xhat.shape[1])
    return grad.addcmul_(xhat, mean[:, None], value=-1)


def interleaved(part: Tensor, head_dim: int) -> Tensor:
    """Weights [heads * D, …] or biases of heads with the two halves of each head interleaved."""
    return part.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


def _merged(parts: Sequence[Tensor | None], how: Projection) -> Tensor | None:
    """Weights or biases of queries, keys and values as one, in the order of the projection; None without."""
    q, k, v = parts
    if q is None or k is None or v is None:
        return None
    return torch.cat([interleaved(q, how.head_dim), interleaved(k, how.head_dim), v])


def _parted(merged: Tensor, how: Projection) -> tuple[Tensor, ...]:
    """The inverse of `_merged`."""

    def halves(part: Tensor) -> Tensor:
        return part.unflatten(0, (-1, how.head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)

    q, k, v = merged.split(how.widths)
    return halves(q), halves(k), v
