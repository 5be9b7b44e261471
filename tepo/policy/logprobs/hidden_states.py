"""Hidden states of a packed micro-batch: by the model's own modules, or on a CPU by the fused pass that equals them."""

from collections.abc import Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from tepo.policy.logprobs.fused_layers import Finish, Norm, Project, Projection, Turn, interleaved
from tepo.policy.model.lora import plain_name, weight_of
from tepo.policy.model.packed_attention import attend_packed, prepare
from tepo.policy.packing.block_layout import Attention, SegmentLayout
from tepo.policy.packing.packing import Packed, pack

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def supported(model: PreTrainedModel) -> bool:
    """Tell whether the model has the parts that the pass is made of, all there: ZeRO-3 leaves empty weights behind."""
    config = model.config
    if config.model_type not in FAMILIES or config.hidden_act != "silu":
        return False
    names = [plain_name(name) for name, _ in model.named_parameters()]
    biased = any(name.endswith(("o_proj.bias", "gate_proj.bias", "up_proj.bias", "down_proj.bias")) for name in names)
    return not biased and all(parameter.numel() for parameter in model.parameters())


def fused_hidden(model: PreTrainedModel, packed: Packed, layout: SegmentLayout) -> Tensor:
    """Last hidden states [N, H] at the positions that predict each response token; the model is `supported`."""
    decoder: Any = model.get_decoder()
    x = F.embedding(packed.tokens, decoder.embed_tokens.weight)
    cos, sin = decoder.rotary_emb(x, packed.positions[None])
    turns = torch.complex(cos, sin)[0, :, : cos.shape[-1] // 2].contiguous()
    config, eps = model.config, model.config.rms_norm_eps

    def normed(heads: Tensor, norm: Any) -> Tensor:
        """Qwen3's norm of each query or key head [M, heads * D], then the rotary embedding."""
        width = 2 * turns.shape[1]
        done = Norm.apply(heads.reshape(-1, width), eps, interleaved(norm.weight, width))
        return Turn.apply(done.reshape(heads.shape), turns)

    for layer in decoder.layers:
        attention, mlp = layer.self_attn, layer.mlp
        width, norms = attention.head_dim, hasattr(attention, "q_norm")
        how = Projection(eps, config.num_attention_heads, config.num_key_value_heads, width, None if norms else turns)
        parts = attention.q_proj, attention.k_proj, attention.v_proj
        weights, biases = [weight_of(part) for part in parts], [part.bias for part in parts]
        q, k, v = Project.apply(x, how, layer.input_layernorm.weight, *weights, *biases)
        if norms:
            q, k = normed(q, attention.q_norm), normed(k, attention.k_norm)
        q, k, v = (part.unflatten(1, (-1, width)) for part in (q, k, v))
        window = getattr(attention, "sliding_window", getattr(config, "sliding_window", None))  # Mistral: of the model
        attended = attend_packed(q, k, v, Attention(layout, attention.scaling, window)).flatten(1)
        finish = attention.o_proj, layer.post_attention_layernorm, mlp.gate_proj, mlp.up_proj, mlp.down_proj
        x = Finish.apply(x, attended, eps, torch.is_grad_enabled(), *map(weight_of, finish))
    return Norm.apply(x.index_select(0, packed.rows), eps, decoder.norm.weight)


_TOLERANCE = 1e-3  # of a gradient: float32 comes to 1e-5, a term left out to 1
_agreeing: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def hidden_states(model: nn.Module, packed: Packed) -> Tensor:
    """Last hidden states [N, H] at the positions that predict each response token."""
    policy, layout = cast(PreTrainedModel, model), SegmentLayout(packed)
    prepare(policy)
    return (fused_hidden if takes_fused(policy) else module_hidden)(policy, packed, layout)


def module_hidden(model: PreTrainedModel, packed: Packed, layout: SegmentLayout) -> Tensor:
    """The same by the model's own modules, on any device and in any type."""
    output = model.get_decoder()(
        input_ids=packed.tokens[None],
        position_ids=packed.positions[None],
        # four dimensions: transformers takes the mask for made and builds none
        attention_mask=packed.tokens.new_empty(1, 1, 1, 1),
        use_cache=False,
        packed_layout=layout,
    )
    return output.last_hidden_state[0].index_select(0, packed.rows)


def takes_fused(model: nn.Module) -> bool:
    """Tell whether the fused pass serves: float32 on a CPU, without dropout and checkpointing (both need training
    mode), and equal to the model's own modules on a small micro-batch. That is tried once for each model. Not where an
    engine stands for the model: DeepSpeed must see each pass, and takes the trial's gradients for those of an
    update."""
    if not isinstance(model, PreTrainedModel):
        return False
    if model.training or model.device.type != "cpu" or model.dtype != torch.float32:
        return False
    if model not in _agreeing:
        _agreeing[model] = supported(model) and _agrees(model)
    return _agreeing[model]


@torch.enable_grad()
def _agrees(model: PreTrainedModel) -> bool:
    """Hidden states and gradients of both passes, each parameter's within a thousandth of its own norm (or of a
    thousandth of the largest: a key's bias has none but rounding)."""
    words = [[token % model.config.vocab_size for token in range(start, start + 7)] for start in (3, 11, 17)]
    packed = pack([(words[0], [words[1], words[2][:4]]), (words[1][:2], [words[0], words[2]])])
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    results: list[list[Tensor]] = []
    for run in (module_hidden, fused_hidden):
        hidden = run(model, packed, SegmentLayout(packed))
        grads: Sequence[Tensor | None] = ()
        if parameters:
            mixed = hidden * torch.linspace(-1.0, 1.0, hidden.numel()).view_as(hidden)
            grads = torch.autograd.grad(mixed.sum(), parameters, allow_unused=True)
        known = [p.new_zeros(p.shape) if grad is None else grad for grad, p in zip(grads, parameters, strict=True)]
        results.append([hidden.detach(), *known])
    scales = [float(value.norm()) for value in results[0]]
    least = _TOLERANCE * max(scales[1:], default=0.0)
    return all(
        float((value - other).norm()) <= _TOLERANCE * max(scale, least)
        for value, other, scale in zip(*results, scales, strict=True)
    )


def output_matrix(model: nn.Module) -> Tensor:
    """The output matrix [V, H], tied to the embeddings or not."""
    return cast(nn.Linear, cast(PreTrainedModel, model).get_output_embeddings()).weight
