"""Hidden states of a packed micro-batch: by the model's own modules, or on a CPU by the fused pass that equals them."""

from collections.abc import Sequence
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tepo.policy.logprobs.fused_decoder import fused_hidden, supported
from tepo.policy.model.attention import prepare
from tepo.policy.packing.block_layout import Layout
from tepo.policy.packing.packing import Packed, pack

_TOLERANCE = 1e-3  # of a gradient: float32 comes to 1e-5, a term left out to 1
_agreeing: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def hidden_states(model: nn.Module, packed: Packed) -> Tensor:
    """Last hidden states [N, H] at the positions that predict each response token."""
    policy, layout = cast(PreTrainedModel, model), Layout(packed)
    prepare(policy)
    return (fused_hidden if takes_fused(policy) else module_hidden)(policy, packed, layout)


def module_hidden(model: PreTrainedModel, packed: Packed, layout: Layout) -> Tensor:
    """The same by the model's own modules, on any device and in any type."""
    output = model.get_decoder()(
        input_ids=packed.tokens[None],
        position_ids=packed.positions[None],
        attention_mask=packed.tokens.new_empty(
            1, 1, 1, 1
        ),  # four dimensions: transformers takes the mask for made and builds none
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
        hidden = run(model, packed, Layout(packed))
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
