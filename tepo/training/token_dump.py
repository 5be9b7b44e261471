"""Per-token diagnostics of one mini-batch as a JSON file, for the token view
(format: docs/tables.md, tepo.reporting.token_view)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tepo.files import write_atomic
from tepo.objectives import Loss, TokenBatch
from tepo.training.flat import FlatRollout

FORMAT = 1


class TokenDump:
    """Collects the micro-batches of the last mini-batch of a step: the one furthest from the policy that sampled."""

    def __init__(self, rollout: FlatRollout, tokenizer: PreTrainedTokenizerBase):
        self.rollout, self.tokenizer = rollout, tokenizer
        self.responses: list[dict[str, Any]] = []

    def add(self, sequences: Sequence[int], batch: TokenBatch, out: Loss) -> None:
        """One micro-batch: its sequence numbers, tensors and per-token diagnostics."""
        named = {"advantage": batch.advantages, "entropy": batch.old_entropies, **out.tokens}
        if batch.logprobs is not None:
            named["log_ratio"] = batch.logprobs.detach() - batch.old_logprobs
        if batch.entropies is not None and batch.old_entropies is not None:
            named["entropy_change"] = batch.entropies.detach() - batch.old_entropies
        lengths = [int(self.rollout.lengths[sequence]) for sequence in sequences]
        columns = {
            name: _split(value, lengths)
            for name, value in named.items()
            if value is not None and value.shape == batch.advantages.shape
        }
        for place, sequence in enumerate(sequences):
            group = self.rollout.groups[sequence // self.rollout.group_size]
            member = sequence % self.rollout.group_size
            self.responses.append(
                {
                    "prompt": group.prompt.problem.prompt,
                    "answer": group.prompt.problem.answer,
                    "reward": float(group.rewards[member]),
                    "finished": group.responses[member].finished,
                    "group": sequence // self.rollout.group_size,
                    "tokens": [self.tokenizer.decode([token]) for token in group.responses[member].tokens.tolist()],
                    "values": {name: pieces[place] for name, pieces in columns.items()},
                }
            )

    def write(self, path: Path, step: int, objective: str) -> None:
        """Write the file by rename."""
        write_atomic(
            path,
            json.dumps(
                {"format": FORMAT, "step": step, "objective": objective, "responses": self.responses},
                ensure_ascii=False,
                separators=(",", ":"),
            ),
        )


def _split(value: Tensor, lengths: Sequence[int]) -> list[list[float]]:
    """Rounded numbers of each sequence."""
    return [
        [float(f"{number:.5g}") for number in piece.tolist()]
        for piece in torch.split(value.float().cpu(), list(lengths))
    ]
