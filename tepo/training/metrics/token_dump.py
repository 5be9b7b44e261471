"""Per-token diagnostics of one mini-batch as a JSON file, for the token view
(format: docs/tables.md, tepo.store.stored_tokens)."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tepo.common.files import write_atomic
from tepo.objectives import Loss, TokenBatch
from tepo.store.stored_tokens import FORMAT
from tepo.training.rollout_batch import FlatRollout

KeptTokens: TypeAlias = tuple[list[int], dict[str, Tensor]]  # a micro-batch's sequences and its `per_token`


def per_token(batch: TokenBatch, out: Loss) -> dict[str, Tensor]:
    """Named diagnostics [N] of a micro-batch, detached and not yet read."""
    named = {"advantage": batch.advantages, "entropy": batch.old_entropies, **out.tokens}
    if batch.logprobs is not None:
        named["log_ratio"] = batch.logprobs.detach() - batch.old_logprobs
    if batch.entropies is not None and batch.old_entropies is not None:
        named["entropy_change"] = batch.entropies.detach() - batch.old_entropies
    shape = batch.advantages.shape
    return {name: value for name, value in named.items() if value is not None and value.shape == shape}


def write_token_dump(
    path: Path, objective: str, rollout: FlatRollout, kept: Sequence[KeptTokens], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Write the file of a step by rename, with an entry for each sequence in the order in which they were trained."""
    decode = cache(lambda token: tokenizer.decode([token]))
    responses = []
    for sequences, named in kept:
        lengths = [int(rollout.lengths[sequence]) for sequence in sequences]
        columns = {name: torch.split(value.float().cpu(), lengths) for name, value in named.items()}
        for index, sequence in enumerate(sequences):
            number, member = divmod(sequence, rollout.group_size)
            group = rollout.groups[number]
            entry = {
                "prompt": group.prompt.problem.prompt,
                "answer": group.prompt.problem.answer,
                "reward": float(group.rewards[member]),
                "finished": group.responses[member].finished,
                "group": number,
                "tokens": [decode(token) for token in group.responses[member].tokens.tolist()],
                "values": {
                    name: [float(f"{number:.5g}") for number in pieces[index].tolist()]
                    for name, pieces in columns.items()
                },
            }
            responses.append(entry)
    data = {"format": FORMAT, "step": rollout.step, "objective": objective, "responses": responses}
    write_atomic(path, json.dumps(data, ensure_ascii=False, separators=(",", ":")))
