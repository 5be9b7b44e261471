"""The rollout of a step: the groups that are trained, and statistics of all prompts that it consumed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tepo.evaluation.scores import pass_at_k
from tepo.training.rollout_batch import Group


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Statistics of a group.

    right: responses with reward 1. lengths: tokens of each response. cut: responses stopped by the length limit.
    timeouts: answers that ran out of the grader's budget.
    """

    right: int
    lengths: list[int]
    cut: int
    timeouts: int

    @classmethod
    def of(cls, group: Group) -> "GroupStats":
        lengths = [len(response.tokens) for response in group.responses]
        cut = sum(not response.finished for response in group.responses)
        return cls(int(group.rewards.sum()), lengths, cut, group.timeouts)

    @classmethod
    def joined(cls, parts: Sequence["GroupStats"]) -> "GroupStats":
        """Join those of a group's parts, in order."""
        lengths = [length for part in parts for length in part.lengths]
        right, cut, timeouts = (sum(getattr(part, name) for part in parts) for name in ("right", "cut", "timeouts"))
        return cls(right, lengths, cut, timeouts)

    @property
    def mixed(self) -> bool:
        """True with both right and wrong responses; otherwise the group has no advantage."""
        return 0 < self.right < len(self.lengths)


@dataclass(frozen=True, slots=True)
class Rollout:
    """The mixed groups of a step, and the statistics of every prompt consumed for them, both in prompt order.

    left_over: prompts added beyond the consumed ones. With several samplers it depends on who was faster.
    """

    groups: list[Group]
    stats: list[GroupStats]
    left_over: int = 0

    @property
    def consumed(self) -> int:
        """Prompts up to the last group taken. The stream goes on after them."""
        return len(self.stats)

    @property
    def all_right(self) -> int:
        return sum(stats.right == len(stats.lengths) for stats in self.stats)

    @property
    def all_wrong(self) -> int:
        return sum(stats.right == 0 for stats in self.stats)

    def metrics(self) -> dict[str, float]:
        """Metrics of the draw by verl's names, and ours (rollout/, grader/); rewards and lengths are over all responses
        to the consumed prompts, before the filter."""
        right = np.array([stats.right for stats in self.stats])
        responses = np.array([len(stats.lengths) for stats in self.stats])
        lengths, size = np.concatenate([stats.lengths for stats in self.stats]), int(responses[0])
        halvings = [size >> shift for shift in range(size.bit_length()) if size >> shift >= 2]  # n, n/2 … down to 2
        return {
            "critic/score/mean": float((right / responses).mean()),
            **{f"critic/score/best@{k}": float(pass_at_k(responses, right, k).mean()) for k in halvings},
            "critic/rewards/kept_mean": float(np.mean([group.rewards.mean() for group in self.groups])),
            "response_length/mean": float(lengths.mean()),
            "response_length/max": float(lengths.max()),
            "response_length/clip_ratio": sum(stats.cut for stats in self.stats) / len(lengths),
            "rollout/prompts": float(self.consumed),
            "rollout/responses": float(len(lengths)),
            "rollout/groups_kept": float(len(self.groups)),
            "rollout/groups_all_right": float(self.all_right),
            "rollout/groups_all_wrong": float(self.all_wrong),
            "rollout/left_over": float(self.left_over),
            "grader/timeouts": float(sum(stats.timeouts for stats in self.stats)),
            "perf/sampled_tokens": float(lengths.sum()),
        }
