"""The decoder's pass over a packed micro-batch on a CPU, out of fused half layers (`fused_layers`)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from tepo.policy.logprobs.fused_layers import Finish, Norm, Project, Projection, Turn, interleaved
from tepo.policy.model.attention import attend_packed
from tepo.policy.model.lora import plain_name, weight_of
from tepo.policy.packing.block_layout import Attention, Layout
from tepo.policy.packing.packing import Packed

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def supported(model: PreTrainedModel) -> bool:
    """Tell whether the model has the parts that the pass is made of, all there: ZeRO-3 leaves empty weights behind."""
    config = model.config
    if config.model_type not in FAMILIES or config.hidden_act != "silu":
        return False
    names = [plain_name(name) for name, _ in model.named_parameters()]
    biased = any(name.endswith(("o_proj.bias", "gate_proj.bias", "up_proj.bias", "down_proj.bias")) for name in names)
    return not biased and all(parameter.numel() for parameter in model.parameters())


def fused_hidden(model: PreTrainedModel, packed: Packed, layout: Layout) -> Tensor:
    """Last hidden states [N, H] at the positions that predict each response token; the model is `supported`."""
    decoder: Any = model.get_decoder()
    x = F.embedding(packed.tokens, decoder.embed_tokens.weight)
    cos, sin = decoder.rotary_emb(x, packed.positions[None])
    turns = torch.complex(cos, sin)[0, :, : cos.shape[-1] // 2].contiguous()
    for layer in decoder.layers:
        x = _layer(layer, x, turns, layout, model.config)
    return Norm.apply(x.index_select(0, packed.rows), model.config.rms_norm_eps, decoder.norm.weight)


def _layer(layer: Any, x: Tensor, turns: Tensor, layout: Layout, config: Any) -> Tensor:
    attention, mlp, eps = layer.self_attn, layer.mlp, config.rms_norm_eps
    width, normed = attention.head_dim, hasattr(attention, "q_norm")
    how = Projection(eps, config.num_attention_heads, config.num_key_value_heads, width, None if normed else turns)
    parts = attention.q_proj, attention.k_proj, attention.v_proj
    weights, biases = [weight_of(part) for part in parts], [part.bias for part in parts]
    q, k, v = Project.apply(x, how, layer.input_layernorm.weight, *weights, *biases)
    if normed:
        q, k = (_normed_heads(part, norm, eps, turns) for part, norm in ((q, attention.q_norm), (k, attention.k_norm)))
    q, k, v = (part.unflatten(1, (-1, width)) for part in (q, k, v))
    window = getattr(attention, "sliding_window", getattr(config, "sliding_window", None))  # Mistral: of the model
    attended = attend_packed(q, k, v, Attention(layout, attention.scaling, window)).flatten(1)
    finish = attention.o_proj, layer.post_attention_layernorm, mlp.gate_proj, mlp.up_proj, mlp.down_proj
    return Finish.apply(x, attended, eps, torch.is_grad_enabled(), *map(weight_of, finish))


def _normed_heads(heads: Tensor, norm: Any, eps: float, turns: Tensor) -> Tensor:
    """Qwen3's norm of each query and key head [M, heads * D], then the rotary embedding."""
    width = 2 * turns.shape[1]
    normed = Norm.apply(heads.reshape(-1, width), eps, interleaved(norm.weight, width))
    return Turn.apply(normed.reshape(heads.shape), turns)
