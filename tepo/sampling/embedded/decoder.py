"""A llama-like decoder (Qwen2, Qwen3, Llama, Mistral) read from a Hugging Face model, written for one-token steps.

At a small step `transformers` spends most of its time on bookkeeping. This is the same arithmetic in few operations:
projections of the same input fused, norm weights folded into them, the rotary embedding as one complex product.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tepo.common.errors import UserError
from tepo.policy.model.lora import weight_of

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer as the forward pass wants them: [in, out], so that `x @ weight`. Norm weights are None
    when folded into what follows."""

    input_norm: Tensor | None
    # for every key head its G query heads, its key head and its value head, each [head_dim], queries and keys with the
    # two halves of a head interleaved, so that neighbours form the complex numbers that the rotary embedding turns
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None  # [G + 1, head_dim], Qwen3's norm of every query and key head
    out: Tensor
    out_bias: Tensor | None
    post_norm: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Decoder:
    """Shapes, and a copy of the layers' weights taken at construction;
    embedding and output matrix are the model's own."""

    def __init__(self, model: Any):
        config = model.config
        check_supported(config)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.group = self.heads // self.kv_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.hidden_size, self.feed_forward = config.hidden_size, config.intermediate_size
        self.eps = config.rms_norm_eps
        self.rotary, self.head, self.head_bias = model.model.rotary_emb, model.lm_head.weight, model.lm_head.bias
        if self.head.data_ptr() % 64:  # a memory-mapped file; MKL's product with one row depends on the alignment
            self.head = self.head.clone()
        self.embedding, self.final_norm = model.model.embed_tokens.weight, model.model.norm.weight
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        self.layers = [self._layer(layer) for layer in model.model.layers]

    def _layer(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        input_norm, post_norm = layer.input_layernorm.weight.detach(), layer.post_attention_layernorm.weight.detach()
        fold = self.dtype == torch.float32  # in bfloat16 the product of weight and norm would be rounded once more
        interleaved = torch.arange(self.head_dim, device=self.device).view(2, -1).t().flatten()

        def merged(*parts: Tensor) -> Tensor:
            q, k, v = (part.detach().unflatten(0, (self.kv_heads, -1, self.head_dim)) for part in parts)
            return torch.cat([q[:, :, interleaved], k[:, :, interleaved], v], dim=1).flatten(0, 2)

        qkv = merged(weight_of(attention.q_proj), weight_of(attention.k_proj), weight_of(attention.v_proj))
        gate_up = torch.cat([weight_of(mlp.gate_proj).detach(), weight_of(mlp.up_proj).detach()])
        qkv_biases = attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias
        gate_bias, qk_norm = mlp.gate_proj.bias, None
        gate_up_bias = None if gate_bias is None else torch.cat([gate_bias.detach(), mlp.up_proj.bias.detach()])
        if hasattr(attention, "q_norm"):
            norms = [attention.q_norm.weight.detach()] * self.group + [attention.k_norm.weight.detach()]
            qk_norm = torch.stack(norms)[:, interleaved]
        return Layer(
            input_norm=None if fold else input_norm,
            qkv=(qkv * input_norm if fold else qkv).t().contiguous(),
            qkv_bias=None if qkv_biases[0] is None else merged(*qkv_biases),
            qk_norm=qk_norm,
            out=weight_of(attention.o_proj).detach().t().contiguous(),
            out_bias=attention.o_proj.bias,
            post_norm=None if fold else post_norm,
            gate_up=(gate_up * post_norm if fold else gate_up).t().contiguous(),
            gate_up_bias=gate_up_bias,
            down=weight_of(mlp.down_proj).detach().t().contiguous(),
            down_bias=mlp.down_proj.bias,
        )

    def turns(self, length: int) -> Tensor:
        """The rotary embedding of positions 0 … length - 1 as complex numbers [length, head_dim / 2],
        from the model's own module."""
        cos, sin = self.rotary(torch.empty(0, device=self.device), torch.arange(length, device=self.device)[None])
        return torch.complex(cos, sin)[0, :, : self.head_dim // 2]

    def logits(self, hidden: Tensor) -> Tensor:
        """Normed hidden states [N, H] to float32 [N, V]."""
        return F.linear(hidden, self.head, self.head_bias).float()


def check_supported(config: Any) -> None:
    """Raise UserError for a model this forward pass would compute wrongly."""
    fix = f"use a model of the families {', '.join(SUPPORTED)}, or sampler=vllm"
    if config.model_type not in SUPPORTED:
        raise UserError(f"the embedded sampler cannot run {config.model_type!r} models", fix=fix)
    if config.hidden_act != "silu":
        raise UserError(f"the embedded sampler knows the activation silu, not {config.hidden_act!r}", fix=fix)
    rope = config.rope_parameters["rope_type"]
    if rope not in ("default", "linear", "llama3", "yarn"):
        what = f"the embedded sampler cannot run rotary embeddings of type {rope!r}, which depend on the length"
        raise UserError(what, fix=fix)


def longest(config: Any) -> int:
    """Tokens a sequence may have: the positions of the model, or its attention window where it is shorter."""
    # Mistral names no types: its window holds for every layer.
    layer_types = getattr(config, "layer_types", None) or ["sliding_attention"]
    window = getattr(config, "sliding_window", None) if "sliding_attention" in layer_types else None
    return min(config.max_position_embeddings, window or config.max_position_embeddings)
