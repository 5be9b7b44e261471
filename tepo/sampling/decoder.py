"""A llama-like decoder (Qwen2, Qwen3, Llama, Mistral) read from a Hugging Face model, written for one-token steps.

`transformers` spends most of a small step in bookkeeping; this forward pass is the same arithmetic with the projections
fused and the key-value cache written in place. It holds no weights of its own beyond the fused copies.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tepo.errors import UserError
from tepo.sampling.cache import KeyValueCache

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Projection:
    """Linear layers that read the same input: one fused copy, or the live ones side by side."""

    sources: list[nn.Linear]
    weight: Tensor | None
    bias: Tensor | None

    @classmethod
    def of(cls, *sources: nn.Linear, fuse: bool) -> "Projection":
        """`fuse`: copy the weights into one matrix, kept up to date by `refresh`."""
        if not fuse or len(sources) == 1:
            return cls(list(sources), None, None)
        weight = torch.cat([source.weight.detach() for source in sources])
        bias = None if sources[0].bias is None else torch.cat([source.bias.detach() for source in sources])
        return cls(list(sources), weight, bias)

    def refresh(self) -> None:
        """Copy the live weights into the fused matrix."""
        if self.weight is not None:
            torch.cat([source.weight.detach() for source in self.sources], out=self.weight)
            if self.bias is not None:
                torch.cat([source.bias.detach() for source in self.sources], out=self.bias)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., H] to [..., sum of the outputs]."""
        if self.weight is not None:
            return F.linear(x, self.weight, self.bias)
        if len(self.sources) == 1:
            return F.linear(x, self.sources[0].weight, self.sources[0].bias)
        return torch.cat([F.linear(x, source.weight, source.bias) for source in self.sources], dim=-1)


class Decoder:
    """The forward pass. `prefill` reads prompts, `step` one token of every row."""

    def __init__(self, model: Any, *, fuse: bool):
        config = model.config
        if config.model_type not in SUPPORTED:
            raise UserError(f"the embedded sampler cannot run {config.model_type!r} models", fix=f"use one of {', '.join(SUPPORTED)}, or sampler=vllm")
        self.model, self.config = model, config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.layers = list(model.model.layers)
        self.qkv = [Projection.of(a.q_proj, a.k_proj, a.v_proj, fuse=fuse) for a in (layer.self_attn for layer in self.layers)]
        self.gate_up = [Projection.of(m.gate_proj, m.up_proj, fuse=fuse) for m in (layer.mlp for layer in self.layers)]
        self.window = config.sliding_window if "sliding_attention" in (getattr(config, "layer_types", None) or _mistral_layers(config)) else None

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self.model.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and cache."""
        return self.model.lm_head.weight.dtype

    def refresh(self) -> None:
        """Take in-place changes of the model's weights into the fused copies."""
        for projection in (*self.qkv, *self.gate_up):
            projection.refresh()

    def rope(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines [length, head_dim] of the positions 0 … length - 1, by the model's own rotary module."""
        if self.window is not None and length > self.window:
            raise UserError(f"prompt and response of {length} tokens exceed the sliding window of {self.window}", fix="lower max_new_tokens, or use sampler=vllm")
        positions = torch.arange(length, device=self.device)[None]
        cos, sin = self.model.model.rotary_emb(torch.empty(0, dtype=self.dtype, device=self.device), positions)
        return cos[0], sin[0]

    def cache(self, rows: int, capacity: int) -> KeyValueCache:
        """An empty cache for this model."""
        return KeyValueCache(len(self.layers), rows, self.kv_heads, capacity, self.head_dim, self.dtype, self.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] to float32 [N, V]."""
        return F.linear(hidden, self.model.lm_head.weight, self.model.lm_head.bias).float()

    def prefill(self, tokens: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: KeyValueCache) -> Tensor:
        """Read left-padded prompts [P, T] into the cache; hidden states [P, H] of their last token.

        cos, sin: [P or 1, T, head_dim]. mask: additive [P, 1, T, T], or None for causal without padding.
        """
        x = F.embedding(tokens, self.model.model.embed_tokens.weight)
        for index, layer in enumerate(self.layers):
            q, k, v = self._heads(index, layer, x, cos[:, :, None], sin[:, :, None])
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            cache.keys[index][: len(tokens), :, : tokens.shape[1]] = k
            cache.values[index][: len(tokens), :, : tokens.shape[1]] = v
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.heads != self.kv_heads)
            if index == len(self.layers) - 1:
                x, attended = x[:, -1:], attended[:, :, -1:]
            x = self._rest(index, layer, x, attended.transpose(1, 2).flatten(2))
        return self._norm(self.model.model.norm, x[:, -1])

    def step(self, tokens: Tensor, column: int, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: KeyValueCache) -> Tensor:
        """Read one token of each of the first N rows, written at `column` of the cache; hidden states [N, H].

        cos, sin: [N or 1, 1, head_dim]. mask: additive [N * kv_heads, 1, >= column + 1], or None.
        """
        rows, seen = len(tokens), column + 1
        x = F.embedding(tokens, self.model.model.embed_tokens.weight)
        for index, layer in enumerate(self.layers):
            q, k, v = self._heads(index, layer, x, cos, sin)
            keys, values = cache.keys[index][:rows, :, :seen], cache.values[index][:rows, :, :seen]
            keys[:, :, column], values[:, :, column] = k, v
            keys, values = keys.flatten(0, 1), values.flatten(0, 1)
            q = q.reshape(rows * self.kv_heads, -1, self.head_dim)
            scores = torch.bmm(q, keys.transpose(1, 2)).float() * self.head_dim**-0.5
            scores = scores if mask is None else scores + mask[:, :, :seen]
            attended = torch.bmm(scores.softmax(-1).to(values.dtype), values)
            x = self._rest(index, layer, x, attended.view(rows, -1))
        return self._norm(self.model.model.norm, x)

    def _norm(self, norm: Any, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), norm.weight, self.eps)

    def _heads(self, index: int, layer: Any, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [..., heads, head_dim] and keys, and values [..., kv_heads, head_dim]."""
        attention = layer.self_attn
        mixed = self.qkv[index](self._norm(layer.input_layernorm, x)).unflatten(-1, (-1, self.head_dim))
        q, k, v = mixed.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        if hasattr(attention, "q_norm"):
            both = torch.cat([self._norm(attention.q_norm, q), self._norm(attention.k_norm, k)], dim=-2)
        else:
            both = mixed[..., : self.heads + self.kv_heads, :]
        first, second = both.chunk(2, dim=-1)
        both = both * cos + torch.cat([-second, first], dim=-1) * sin
        q, k = both.split([self.heads, self.kv_heads], dim=-2)
        return q, k, v

    def _rest(self, index: int, layer: Any, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection, residual and feed-forward."""
        x = x + layer.self_attn.o_proj(attended)
        gate, up = self.gate_up[index](self._norm(layer.post_attention_layernorm, x)).chunk(2, dim=-1)
        return x + layer.mlp.down_proj(layer.mlp.act_fn(gate) * up)


def _mistral_layers(config: object) -> list[str]:
    """Mistral names no layer types: its window, when set, holds for every layer."""
    return ["sliding_attention"] if getattr(config, "sliding_window", None) else []
