"""Per-token statistics of the policy on a packed micro-batch: one forward for log-probs and entropies."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tepo.policy.logprobs import tile
from tepo.policy.logprobs.softmax_at_temperature import StatisticsOptions, softmax_statistics, token_parts
from tepo.policy.model.packed_attention import prepare
from tepo.policy.packing.block_layout import SegmentLayout
from tepo.policy.packing.packing import Packed


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """Statistics of N response tokens, sequence after sequence, float32 [N], in nats, at the given temperature."""

    logprobs: Tensor  # log pi(token), with gradient
    entropies: Tensor | None  # of the full vocabulary, with gradient only on request; None when not asked for
    full_kl: Tensor | None  # sum_v pi(v) log(pi(v) / reference(v)), with gradient; None without a reference


def token_statistics(
    model: nn.Module, packed: Packed, options: StatisticsOptions = StatisticsOptions(), *, hidden: Tensor | None = None
) -> TokenStatistics:
    """Log-probs, entropies and, with a reference policy among the options, the exact KL to it. hidden: the hidden
    states [N, H] of `packed`, where they are known."""
    hidden = hidden_states(model, packed) if hidden is None else hidden
    logprobs, entropies, full_kl = softmax_statistics(hidden, output_matrix(model), packed.targets, options)
    return TokenStatistics(logprobs, entropies, full_kl)


@torch.no_grad()
def reference_logprobs(
    model: nn.Module, packed: Packed, *, temperature: float = 1.0, hidden: Tensor | None = None
) -> Tensor:
    """Log-probs of the full vocabulary [N, V] float32, for the exact KL to this policy later. hidden: as
    `token_statistics`."""
    weight = output_matrix(model)
    hidden = hidden_states(model, packed) if hidden is None else hidden
    # as `softmax_statistics`: in bfloat16 alone the entropy would seem to change where nothing did
    wide = torch.promote_types(hidden.dtype, torch.float32)
    logprobs = hidden.new_empty(len(hidden), len(weight), dtype=torch.float32)
    for rows in token_parts(*logprobs.shape):
        buffer = hidden.new_empty(logprobs[rows].numel(), dtype=wide)
        logits = tile.product(hidden[rows], weight, buffer).float()
        logprobs[rows] = torch.log_softmax(logits / temperature, dim=-1)
    return logprobs


def hidden_states(model: nn.Module, packed: Packed) -> Tensor:
    """Last hidden states [N, H] at the positions that predict each response token."""
    policy = cast(PreTrainedModel, model)
    prepare(policy)
    output = policy.get_decoder()(
        input_ids=packed.tokens[None],
        position_ids=packed.positions[None],
        # four dimensions: transformers takes the mask for made and builds none
        attention_mask=packed.tokens.new_empty(1, 1, 1, 1),
        use_cache=False,
        packed_layout=SegmentLayout(packed),
    )
    return output.last_hidden_state[0].index_select(0, packed.rows)


def output_matrix(model: nn.Module) -> Tensor:
    """The output matrix [V, H], tied to the embeddings or not."""
    return cast(nn.Linear, cast(PreTrainedModel, model).get_output_embeddings()).weight
