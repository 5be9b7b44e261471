"""The rollout of a step: the groups that are trained, and statistics of all prompts that it consumed."""

from dataclasses import dataclass
from itertools import chain

import numpy as np

from tepo.evaluation.scores import pass_at_k
from tepo.training.rollout_batch import Group


@dataclass(frozen=True, slots=True)
class Rollout:
    """The mixed groups of a step, and those of every prompt consumed for them, both in prompt order."""

    groups: list[Group]
    drawn: list[Group]  # without log-probs where they are not trained
    left_over: int = 0  # prompts added beyond the consumed ones; of several samplers it depends on who was faster
    names: tuple[str, ...] = ()  # of rewards of a user's own

    @property
    def consumed(self) -> int:
        """Prompts up to the last group taken. The stream goes on after them."""
        return len(self.drawn)

    @property
    def lengths(self) -> list[int]:
        """Tokens of all responses to the consumed prompts."""
        return [len(response.tokens) for group in self.drawn for response in group.responses]

    @property
    def cut(self) -> int:
        """Responses stopped by the length limit."""
        return sum([not response.finished for group in self.drawn for response in group.responses])

    def all_have(self, reward: float) -> int:
        """Count the groups whose responses all have a reward."""
        return sum([bool((group.rewards == reward).all()) for group in self.drawn])

    def metrics(self) -> dict[str, float]:
        """Metrics of the draw by verl's names, and ours (rollout/, grader/, reward/); rewards and lengths are over all
        responses to the consumed prompts, before the filter."""
        score = np.array([sum(group.true_rewards) for group in self.drawn])
        right = np.array([group.true_rewards.count(1.0) for group in self.drawn])
        responses = np.array([len(group.responses) for group in self.drawn])
        lengths, size = np.array(self.lengths), int(responses[0])
        halvings = [size >> shift for shift in range(size.bit_length()) if size >> shift >= 2]  # n, n/2 … down to 2
        figures = {
            "critic/score/mean": float((score / responses).mean()),
            **{f"critic/score/best@{k}": float(pass_at_k(responses, right, k).mean()) for k in halvings},
            "critic/rewards/kept_mean": float(np.mean([group.rewards.mean() for group in self.groups])),
            "response_length/mean": float(lengths.mean()),
            "response_length/max": float(lengths.max()),
            "response_length/clip_ratio": self.cut / len(lengths),
            "rollout/prompts": float(self.consumed),
            "rollout/responses": float(len(lengths)),
            "rollout/groups_kept": float(len(self.groups)),
            "rollout/groups_all_right": float(self.all_have(1.0)),
            "rollout/groups_all_wrong": float(self.all_have(0.0)),
            "perf/left_over": float(self.left_over),
            "grader/timeouts": float(sum(group.timeouts for group in self.drawn)),
            "perf/sampled_tokens": float(lengths.sum()),
        }
        if self.drawn[0].scores is not None:  # the rewards that are trained on are noisy
            rewards = [reward for group in self.drawn for reward in group.rewards.tolist()]
            scores = [score for group in self.drawn for score in group.true_rewards]
            figures["critic/rewards/mean"] = float(np.mean(rewards))
            figures["rollout/flipped"] = float(sum(map(float.__ne__, scores, rewards)))
        if self.names:
            named = [group.named.tolist() for group in self.drawn if group.named is not None]
            means = np.mean(list(chain(*named)), axis=0)
            figures |= {f"reward/{name}/mean": float(mean) for name, mean in zip(self.names, means, strict=True)}
            others = [given for group in self.drawn for given in group.figures]
            for name in dict.fromkeys(chain(*others)):
                figures[f"reward/{name}"] = float(np.mean([given[name] for given in others if name in given]))
            figures["reward/failed"] = float(sum(len(group.failures) for group in self.drawn))
        return figures
