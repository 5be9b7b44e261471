"""A llama-like decoder (Qwen2, Qwen3, Llama, Mistral) read from a Hugging Face model, written for one-token steps.

At a small step `transformers` spends most of its time on bookkeeping. This is the same arithmetic in few operations:
projections of the same input fused, rotary embedding as one complex product, keys and values written in place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tepo.errors import UserError
from tepo.sampling.cache import KeyValueCache

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer as the forward pass wants them: [in, out], so that `x @ weight`.

    qkv: for every key head its G query heads, its key head and its value head, each [head_dim], queries and keys with
    the two halves of a head interleaved so that neighbours form the complex numbers that the rotary embedding turns.
    qk_norm [G + 1, head_dim]: Qwen3's norm of every query and key head. Norm weights are None when folded into what follows.
    """

    input_norm: Tensor | None
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    post_norm: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Decoder:
    """The forward pass over a copy of the layers' weights taken at construction; embedding and output matrix are the live ones."""

    def __init__(self, model: Any):
        config = model.config
        check_supported(config)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.group = self.heads // self.kv_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.rotary, self.head = model.model.rotary_emb, model.lm_head
        self.embedding, self.final_norm = model.model.embed_tokens.weight, model.model.norm.weight
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        self.layers = [self._layer(layer) for layer in model.model.layers]
        # MKL multiplies four rows by a small matrix in less time than three; the key head follows its query heads, so
        # letting it ask too (and ignoring the answer) costs no copy.
        extra = self.device.type == "cpu" and (self.group + 1) % 4 == 0
        self.asking = self.group + extra

    def _layer(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        fold = self.dtype == torch.float32  # in bfloat16 the product of weight and norm would be rounded once more
        turn = torch.arange(self.head_dim, device=self.device).view(2, -1).t().flatten()

        def norm(module: Any) -> Tensor:
            return module.weight.detach()

        def merged(parts: list[Tensor]) -> Tensor:
            q, k, v = (part.detach().unflatten(0, (self.kv_heads, -1, self.head_dim)) for part in parts)
            return torch.cat([q[:, :, turn], k[:, :, turn], v], dim=1).flatten(0, 2)

        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        qkv = merged([p.weight for p in projections])
        gate_up = torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()])
        if fold:
            qkv, gate_up = qkv * norm(layer.input_layernorm), gate_up * norm(layer.post_attention_layernorm)
        qk_norm = None
        if hasattr(attention, "q_norm"):
            qk_norm = torch.stack([norm(attention.q_norm)[turn]] * self.group + [norm(attention.k_norm)[turn]])
        return Layer(
            input_norm=None if fold else norm(layer.input_layernorm),
            qkv=qkv.t().contiguous(),
            qkv_bias=None if projections[0].bias is None else merged([p.bias for p in projections]),
            qk_norm=qk_norm,
            out=attention.o_proj.weight.detach().t().contiguous(),
            out_bias=attention.o_proj.bias,
            post_norm=None if fold else norm(layer.post_attention_layernorm),
            gate_up=gate_up.t().contiguous(),
            gate_up_bias=None if mlp.gate_proj.bias is None else torch.cat([mlp.gate_proj.bias.detach(), mlp.up_proj.bias.detach()]),
            down=mlp.down_proj.weight.detach().t().contiguous(),
            down_bias=mlp.down_proj.bias,
        )

    def turns(self, length: int) -> Tensor:
        """The rotary embedding of positions 0 … length - 1 as complex numbers [length, head_dim / 2], from the model's own module."""
        cos, sin = self.rotary(torch.empty(0, device=self.device), torch.arange(length, device=self.device)[None])
        return torch.complex(cos, sin)[0, :, : self.head_dim // 2]

    def cache(self, rows: int, capacity: int) -> KeyValueCache:
        """An empty cache for this model."""
        return KeyValueCache.empty(len(self.layers), rows, self.kv_heads, capacity, self.head_dim, dtype=self.dtype, device=self.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] to float32 [N, V]."""
        return F.linear(hidden, self.head.weight, self.head.bias).float()

    def prefill(self, tokens: Tensor, turns: Tensor, mask: Tensor | None, cache: KeyValueCache) -> Tensor:
        """Read left-padded prompts [P, T] into a cache of capacity T; hidden states [P, H] of their last tokens.

        turns: complex [P * T, head_dim / 2]. mask: additive [P, 1, T, T], or None for causal without padding.
        """
        rows, width = tokens.shape

        def attend(index: int, qkv: Tensor) -> Tensor:
            heads = qkv.unflatten(0, (rows, width)).permute(0, 2, 3, 1, 4)  # [P, kv_heads, G + 2, T, head_dim]
            q = heads[:, :, : self.group].flatten(1, 2)
            keys, values = cache.layer(index, rows, width)
            keys.copy_(heads[:, :, self.group])
            values.copy_(heads[:, :, self.group + 1])
            gqa = self.group > 1
            attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=gqa)
            return attended.transpose(1, 2).flatten(0, 1).flatten(1)

        last = torch.arange(1, rows + 1, device=tokens.device) * width - 1
        return self._forward(tokens.flatten(), turns, attend, last)

    def step(self, tokens: Tensor, column: int, turns: Tensor, mask: Tensor, cache: KeyValueCache) -> Tensor:
        """Read one token of each of the first N rows, written at `column` of the cache; hidden states [N, H].

        turns: complex [N or 1, head_dim / 2]. mask: additive [N or 1, 1, 1, >= column + 1].
        """
        rows, seen = len(tokens), column + 1
        mask = mask[..., :seen]
        flat_mask = mask.expand(-1, self.kv_heads, 1, seen).flatten(0, 1) if len(mask) == rows else mask[0]

        def attend(index: int, qkv: Tensor) -> Tensor:
            cache.data[index, :rows, :, column] = qkv[:, :, self.group :]
            keys, values = cache.layer(index, rows, seen)
            if self.dtype != torch.float32:  # this kernel keeps the scores in float32
                attended = F.scaled_dot_product_attention(qkv[:, :, : self.group], keys, values, attn_mask=mask)
                return attended.flatten(1)
            q, keys, values = qkv[:, :, : self.asking].flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1)
            scores = torch.baddbmm(flat_mask, q, keys.transpose(1, 2), alpha=self.head_dim**-0.5)
            attended = torch.bmm(scores.softmax(-1), values)
            return attended[:, : self.group].unflatten(0, (rows, self.kv_heads)).flatten(1)

        return self._forward(tokens, turns, attend, None)

    def _forward(self, tokens: Tensor, turns: Tensor, attend: Callable[[int, Tensor], Tensor], last: Tensor | None) -> Tensor:
        """Hidden states [N, H] of tokens [N]; `last`: the only rows wanted at the end."""
        x = F.embedding(tokens, self.embedding)
        turns = turns[:, None, None]
        for index, layer in enumerate(self.layers):
            qkv = _project(self._norm(x, layer.input_norm), layer.qkv, layer.qkv_bias).view(len(x), self.kv_heads, self.group + 2, self.head_dim)
            self._turn(qkv[:, :, : self.group + 1], turns, layer.qk_norm)
            attended = attend(index, qkv)
            if last is not None and index == len(self.layers) - 1:
                x, attended = x[last], attended[last]
            _add(x, attended, layer.out, layer.out_bias)
            gate, up = _project(self._norm(x, layer.post_norm), layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            _add(x, F.silu(gate).mul_(up), layer.down, layer.down_bias)
        return F.rms_norm(x, x.shape[-1:], self.final_norm, self.eps)

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        if weight is not None or x.is_cuda:
            return F.rms_norm(x, x.shape[-1:], weight, self.eps)
        # The CPU operator of torch is composed of more and slower parts than this.
        return x * torch.linalg.vecdot(x, x).mul_(1 / x.shape[-1]).add_(self.eps).rsqrt_()[:, None]

    def _turn(self, heads: Tensor, turns: Tensor, qk_norm: Tensor | None) -> None:
        """Norm (Qwen3) and rotary embedding of queries and keys [N, kv_heads, G + 1, head_dim], in place."""
        turned = heads.float()
        if qk_norm is not None:
            turned = F.rms_norm(turned, (self.head_dim,), None, self.eps).mul_(qk_norm)
        torch.view_as_complex(turned.unflatten(-1, (-1, 2))).mul_(turns)
        if turned is not heads:
            heads.copy_(turned)


def _project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight if bias is None else torch.addmm(bias, x, weight)


def _add(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """x += y @ weight + bias."""
    x.addmm_(y, weight)
    if bias is not None:
        x += bias


def check_supported(config: Any) -> None:
    """Raise UserError for a model this forward pass would compute wrongly."""
    fix = f"use a model of the families {', '.join(SUPPORTED)}, or sampler=vllm"
    if config.model_type not in SUPPORTED:
        raise UserError(f"the embedded sampler cannot run {config.model_type!r} models", fix=fix)
    if config.hidden_act != "silu":
        raise UserError(f"the embedded sampler knows the activation silu, not {config.hidden_act!r}", fix=fix)
    rope = config.rope_parameters["rope_type"]
    if rope not in ("default", "linear", "llama3", "yarn"):
        raise UserError(f"the embedded sampler cannot run rotary embeddings of type {rope!r}, which depend on the length", fix=fix)


def longest(config: Any) -> int:
    """Tokens a sequence may have: the positions of the model, or its attention window where it is shorter."""
    layer_types = getattr(config, "layer_types", None) or ["sliding_attention"]  # Mistral names none: its window holds for every layer
    window = getattr(config, "sliding_window", None) if "sliding_attention" in layer_types else None
    return min(config.max_position_embeddings, window or config.max_position_embeddings)
