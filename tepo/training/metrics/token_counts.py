"""Tokens that a step has sampled, scored and trained: the numbers that its seconds are divided by."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tepo.training.rollout_batch import FlatRollout

MACHINE = (
    "timing_per_token_ms/",
    "perf/throughput",
    "perf/mfu/",
    "perf/bubble/",
    "perf/max_memory",
    "perf/cpu",
    "perf/slowest_rank",
)
"""How the metrics begin that say how well a step used its machine, see `tepo.training.metrics.throughput`."""


class Size(NamedTuple):
    """Size of a rollout as the model sees it, each prompt once a group. tokens: pushed. pairs: of a token and one that
    it attends to, doubled: the sum of squared lengths for sequences without a common prompt."""

    tokens: float
    pairs: float

    @classmethod
    def of(cls, rollout: FlatRollout) -> "Size":
        prompts = np.array([len(group.prompt.tokens) for group in rollout.groups], dtype=float)
        lengths = rollout.lengths.astype(float)
        full = (np.repeat(prompts, rollout.group_size) + lengths) ** 2
        shared = (rollout.group_size - 1) * prompts**2
        return cls(float(prompts.sum() + lengths.sum()), float(full.sum() - shared.sum()))

    def plus(self, other: "Size", times: int) -> "Size":
        return Size(self.tokens + times * other.tokens, self.pairs + times * other.pairs)


_NOTHING = Size(0.0, 0.0)


@dataclass
class TokenCounts:
    """Counts of a step, of all ranks where nothing else is said."""

    sampled: float = 0.0  # response tokens of the prompts consumed by the rollouts that were drawn
    scored: Size = _NOTHING  # of all log-prob passes before the updates
    trained: Size = _NOTHING  # of the updates, each epoch counted
    batch: float = 0.0  # prompt and response tokens of the trained sequences, each with its prompt: as verl counts
    hidden: float = 0.0  # seconds of drawing beside updates, on this rank

    def score(self, rollout: FlatRollout, passes: int) -> None:
        """Count log-prob passes over a rollout."""
        self.scored = self.scored.plus(Size.of(rollout), passes)

    def train(self, rollout: FlatRollout, epochs: int) -> None:
        """Count the updates on a rollout."""
        self.trained = self.trained.plus(Size.of(rollout), epochs)
        prompts = sum(len(group.prompt.tokens) for group in rollout.groups)
        self.batch += float(rollout.lengths.sum()) + rollout.group_size * prompts
