"""The rollout of a step: the groups that are trained, and statistics of all prompts that it consumed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tepo.evaluation.scores import pass_at_k
from tepo.training.rollout_batch import Group


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Statistics of a group, or of a part of one."""

    rewards: list[float]  # of each response, as it is trained on
    scores: list[float] | None  # before `data.flip_rewards`; None where it is not set
    lengths: list[int]  # tokens of each response
    cut: int  # responses stopped by the length limit
    timeouts: int  # answers that ran out of the grader's budget
    named: list[list[float]]  # rewards of a user's own, by response
    failures: tuple[str, ...]  # why, for each response without some

    @classmethod
    def of(cls, group: Group) -> "GroupStats":
        return cls(
            group.rewards.tolist(),
            None if group.scores is None else group.scores.tolist(),
            [len(response.tokens) for response in group.responses],
            sum(not response.finished for response in group.responses),
            group.timeouts,
            [] if group.named is None else group.named.tolist(),
            group.failures,
        )

    @classmethod
    def joined(cls, parts: Sequence["GroupStats"]) -> "GroupStats":
        """Join those of a group's parts, in order."""
        columns = ([getattr(part, field.name) for part in parts] for field in fields(cls))
        values: list[Any] = [None if first is None else sum(others, first) for first, *others in columns]
        return cls(*values)

    @property
    def true(self) -> list[float]:
        """Rewards without noise."""
        return self.rewards if self.scores is None else self.scores

    @property
    def mixed(self) -> bool:
        """True where rewards differ, as of right and wrong responses; otherwise the group has no advantage."""
        return len(set(self.rewards)) > 1


@dataclass(frozen=True, slots=True)
class Rollout:
    """The mixed groups of a step, and the statistics of every prompt consumed for them, both in prompt order."""

    groups: list[Group]
    stats: list[GroupStats]
    left_over: int = 0  # prompts added beyond the consumed ones; of several samplers it depends on who was faster
    names: tuple[str, ...] = ()  # of rewards of a user's own

    @property
    def consumed(self) -> int:
        """Prompts up to the last group taken. The stream goes on after them."""
        return len(self.stats)

    @property
    def all_right(self) -> int:
        return sum(set(stats.rewards) == {1.0} for stats in self.stats)

    @property
    def all_wrong(self) -> int:
        return sum(set(stats.rewards) == {0.0} for stats in self.stats)

    def metrics(self) -> dict[str, float]:
        """Metrics of the draw by verl's names, and ours (rollout/, grader/, reward/); rewards and lengths are over all
        responses to the consumed prompts, before the filter."""
        score = np.array([sum(stats.true) for stats in self.stats])
        right = np.array([stats.true.count(1.0) for stats in self.stats])
        responses = np.array([len(stats.lengths) for stats in self.stats])
        lengths, size = np.concatenate([stats.lengths for stats in self.stats]), int(responses[0])
        halvings = [size >> shift for shift in range(size.bit_length()) if size >> shift >= 2]  # n, n/2 … down to 2
        return {
            "critic/score/mean": float((score / responses).mean()),
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
            "perf/left_over": float(self.left_over),
            "grader/timeouts": float(sum(stats.timeouts for stats in self.stats)),
            "perf/sampled_tokens": float(lengths.sum()),
            **self._of_noise(),
            **self._of_own(),
        }

    def _of_noise(self) -> dict[str, float]:
        """The rewards that are trained on, where they are noisy."""
        pairs = [pair for stats in self.stats for pair in zip(stats.scores or (), stats.rewards, strict=False)]
        if not pairs:
            return {}
        flipped = sum(score != reward for score, reward in pairs)
        return {
            "critic/rewards/mean": float(np.mean([reward for _, reward in pairs])),
            "rollout/flipped": float(flipped),
        }

    def _of_own(self) -> dict[str, float]:
        """Mean of each reward of a user's own, and the responses on which one failed."""
        if not self.names:
            return {}
        means = np.mean([row for stats in self.stats for row in stats.named], axis=0)
        failed = sum(len(stats.failures) for stats in self.stats)
        named = {f"reward/{name}/mean": float(mean) for name, mean in zip(self.names, means, strict=True)}
        return named | {"reward/failed": float(failed)}
