"""What a step drew: the groups that are trained, and what is counted of all prompts that it consumed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tepo.evaluation.scores import pass_at_k
from tepo.training.batch import Group


@dataclass(frozen=True, slots=True)
class Counts:
    """What is counted of a group.

    right: responses with reward 1. lengths: tokens of each response. cut: responses stopped by the length limit.
    timeouts: answers that ran out of the grader's budget.
    """

    right: int
    lengths: list[int]
    cut: int
    timeouts: int

    @classmethod
    def of(cls, group: Group) -> "Counts":
        lengths = [len(response.tokens) for response in group.responses]
        cut = sum(not response.finished for response in group.responses)
        return cls(int(group.rewards.sum()), lengths, cut, group.timeouts)

    @classmethod
    def joined(cls, parts: Sequence["Counts"]) -> "Counts":
        """Of a group from those of its parts, in order."""
        lengths = [length for part in parts for length in part.lengths]
        right, cut, timeouts = (sum(getattr(part, name) for part in parts) for name in ("right", "cut", "timeouts"))
        return cls(right, lengths, cut, timeouts)

    @property
    def mixed(self) -> bool:
        """Whether there are both right and wrong responses; otherwise the group has no advantage."""
        return 0 < self.right < len(self.lengths)


@dataclass(frozen=True, slots=True)
class Rollout:
    """The mixed groups of a step, and the counts of every prompt consumed for them, both in prompt order.

    left_over: prompts added beyond the consumed ones. With several samplers it depends on who was faster.
    """

    groups: list[Group]
    counts: list[Counts]
    left_over: int = 0

    @property
    def consumed(self) -> int:
        """Prompts up to the last group taken. The stream goes on after them."""
        return len(self.counts)

    @property
    def all_right(self) -> int:
        return sum(counts.right == len(counts.lengths) for counts in self.counts)

    @property
    def all_wrong(self) -> int:
        return sum(counts.right == 0 for counts in self.counts)

    def metrics(self) -> dict[str, float]:
        """verl's names, and ours (rollout/, grader/); rewards and lengths are over all responses to the consumed
        prompts, before the filter."""
        right = np.array([counts.right for counts in self.counts])
        responses = np.array([len(counts.lengths) for counts in self.counts])
        lengths = np.concatenate([counts.lengths for counts in self.counts])
        return {
            "critic/score/mean": float((right / responses).mean()),
            **{
                f"critic/score/best@{k}": float(pass_at_k(responses, right, k).mean())
                for k in _halvings(int(responses[0]))
            },
            "critic/rewards/kept_mean": float(np.mean([group.rewards.mean() for group in self.groups])),
            "response_length/mean": float(lengths.mean()),
            "response_length/max": float(lengths.max()),
            "response_length/clip_ratio": sum(counts.cut for counts in self.counts) / len(lengths),
            "rollout/prompts": float(self.consumed),
            "rollout/responses": float(len(lengths)),
            "rollout/groups_kept": float(len(self.groups)),
            "rollout/groups_all_right": float(self.all_right),
            "rollout/groups_all_wrong": float(self.all_wrong),
            "rollout/left_over": float(self.left_over),
            "grader/timeouts": float(sum(counts.timeouts for counts in self.counts)),
            "perf/sampled_tokens": float(lengths.sum()),
        }


def _halvings(n: int) -> list[int]:
    """n, n/2, n/4 … down to 2."""
    return [n >> shift for shift in range(n.bit_length()) if n >> shift >= 2]
