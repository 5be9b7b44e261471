"""Rollouts as flat tensors, their mini-batches, and the micro-batches of each rank.

Response tokens lie sequence after sequence, sequences group after group.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tepo.config.run_config import TrainConfig
from tepo.objectives import Groups, Plan, TokenBatch
from tepo.policy.logprobs.token_statistics import TokenStatistics
from tepo.policy.packing.load_balance import deal
from tepo.policy.packing.packing import Packed, pack, split_by_tokens
from tepo.problems.problem import Problem
from tepo.sampling.sampler import Response


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem as the policy sees it; `number` is its index in the stream."""

    number: int
    problem: Problem
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt, its G responses and their rewards."""

    prompt: Prompt
    responses: list[Response]
    rewards: np.ndarray  # that are trained on, float32 [G]
    timeouts: int = 0  # so many of them are 0 because the grader gave the answer up
    scores: np.ndarray | None = None  # the rewards before `data.flip_rewards`, where it is set
    named: np.ndarray | None = None  # rewards of a user's own, float32 [G, K]
    weights: tuple[float, ...] = ()  # of these [K]
    failures: tuple[str, ...] = ()  # why, for each response whose named rewards could not all be had
    figures: tuple[Mapping[str, float], ...] = ()  # others that rewards of a user's own gave, of each response

    @property
    def true_rewards(self) -> list[float]:
        """Rewards without noise."""
        return (self.rewards if self.scores is None else self.scores).tolist()

    def without_logprobs(self) -> "Group":
        """The group as far as statistics need it, where it is not trained."""
        none = np.empty(0, np.float32)
        responses = [Response(response.tokens, none, None, response.finished) for response in self.responses]
        return replace(self, responses=responses)

    @classmethod
    def joined(cls, parts: Sequence["Group"]) -> "Group":
        """Join parts of a group: all their responses, in order."""
        if len(parts) == 1:
            return parts[0]
        responses = [response for part in parts for response in part.responses]
        rewards = np.concatenate([part.rewards for part in parts])
        scores, named = (
            None if getattr(parts[0], name) is None else np.concatenate([getattr(part, name) for part in parts])
            for name in ("scores", "named")
        )
        failures, figures = (
            tuple(itertools.chain(*(getattr(part, name) for part in parts))) for name in ("failures", "figures")
        )
        timeouts = sum(part.timeouts for part in parts)
        return cls(parts[0].prompt, responses, rewards, timeouts, scores, named, parts[0].weights, failures, figures)


def even_chunks(count: int, parts: int) -> list[list[int]]:
    """0 … count - 1 in order, in at most `parts` runs whose sizes differ by one at most."""
    parts = min(parts, count)
    bounds = [count * part // parts for part in range(parts + 1)]
    return [list(range(begin, end)) for begin, end in itertools.pairwise(bounds)]


class FlatRollout:
    """S sequences and N response tokens of the kept groups; old values are those of the policy that sampled them.

    step: that trains it; metrics: of the draw. named: rewards of a user's own [S, K], or None, with their `weights`.
    sampler_logprobs, old_logprobs, old_entropies: float32 [N]. old_distribution: log-probs [N, V] of the
    policy that an exact KL is taken to, or None. values: tracked success rates [S], or None. kept: some sequences and
    their hidden states with the graph behind.
    """

    def __init__(
        self, groups: Sequence[Group], device: torch.device, step: int = 0, metrics: dict[str, float] | None = None
    ):
        self.groups, self.device, self.step, self.metrics = list(groups), device, step, metrics or {}
        responses = [response for group in groups for response in group.responses]
        size = len(groups[0].responses)
        self.group_count, self.group_size = len(groups), size
        self.lengths = np.array([len(response.tokens) for response in responses])
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        self.finished = torch.tensor([response.finished for response in responses], device=device)
        self.rewards = torch.tensor(np.concatenate([group.rewards for group in groups]), device=device)
        named = [group.named for group in groups if group.named is not None]
        self.named = torch.tensor(np.concatenate(named), device=device) if named else None
        self.weights = groups[0].weights
        uids = [group.prompt.number * size + index for group in groups for index in range(size)]
        self.uids = torch.tensor(uids, device=device)
        self.lengths_tensor = torch.from_numpy(self.lengths).to(device)
        self.owners = torch.arange(len(responses), device=device) // size
        self.sampler_logprobs = self._flat([response.logprobs for response in responses])
        has_entropies = all(response.entropies is not None for response in responses)
        self.old_logprobs = self.sampler_logprobs
        self.old_entropies = self._flat([response.entropies for response in responses]) if has_entropies else None
        self.old_distribution: Tensor | None = None
        self.initial_logprobs: Tensor | None = None
        self.teacher_logprobs: Tensor | None = None
        self.values: Tensor | None = None
        self.kept: tuple[list[int], Tensor] | None = None

    def take_kept(self, sequences: Sequence[int]) -> Tensor | None:
        """The hidden states kept for just these sequences; a graph serves one backward."""
        if self.kept is None or self.kept[0] != list(sequences):
            return None
        (_, hidden), self.kept = self.kept, None
        return hidden

    def _flat(self, values: Sequence[np.ndarray | None]) -> Tensor:
        flat_values = np.concatenate([value for value in values if value is not None])
        return torch.from_numpy(flat_values).float().to(self.device)

    @property
    def sequence_count(self) -> int:
        return len(self.lengths)

    def sequences_of(self, groups: Sequence[int]) -> list[int]:
        """Sequence numbers of complete groups."""
        return [group * self.group_size + index for group in groups for index in range(self.group_size)]

    @property
    def shortest(self) -> int:
        """The sequence that takes the least to push."""
        prompts = np.repeat([len(group.prompt.tokens) for group in self.groups], self.group_size)
        return int((prompts + self.lengths).argmin())

    def tokens_of(self, sequences: Sequence[int]) -> Tensor:
        """Positions in [0, N) of the tokens of some sequences, in their order."""
        pieces = [np.arange(self.offsets[sequence], self.offsets[sequence + 1]) for sequence in sequences]
        return torch.from_numpy(np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)).to(self.device)

    def pack(self, sequences: Sequence[int]) -> Packed:
        """The packed micro-batch of some sequences (sorted): each prompt once, with the responses that are there."""
        indices: dict[int, list[int]] = {}
        for sequence in sequences:
            indices.setdefault(sequence // self.group_size, []).append(sequence % self.group_size)
        content = [
            (self.groups[group].prompt.tokens, [self.groups[group].responses[index].tokens for index in members])
            for group, members in indices.items()
        ]
        return pack(content).to(self.device)

    def tokens_as_sampled(self, sequence: int) -> tuple[list[int], list[int]]:
        """Prompt and response of a sequence."""
        group = self.groups[sequence // self.group_size]
        return group.prompt.tokens, group.responses[sequence % self.group_size].tokens.tolist()

    def costs(self, sequences: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Prompt length, response length and group of each sequence."""
        owners = [sequence // self.group_size for sequence in sequences]
        return (
            [len(self.groups[group].prompt.tokens) for group in owners],
            [int(self.lengths[sequence]) for sequence in sequences],
            owners,
        )

    def for_advantages(self, max_new_tokens: int) -> Groups:
        """Rewards, lengths and old entropies, from which advantages are made once per rollout."""
        return Groups(
            self.rewards,
            self.owners,
            self.lengths_tensor,
            self.old_entropies,
            self.finished,
            max_new_tokens,
            self.named,
            self.weights,
            self.values,
        )

    def batch(self, advantages: Tensor, max_new_tokens: int) -> TokenBatch:
        """All tokens as the objective sees them, without current log-probs. advantages: float [N]."""
        return TokenBatch(
            old_logprobs=self.old_logprobs,
            advantages=advantages,
            lengths=self.lengths_tensor,
            old_entropies=self.old_entropies,
            initial_logprobs=self.initial_logprobs,
            teacher_logprobs=self.teacher_logprobs,
            sampler_logprobs=self.sampler_logprobs,
            uid=self.uids,
            group_ids=self.owners,
            finished=self.finished,
            max_new_tokens=max_new_tokens,
        )

    def targets(self) -> Tensor:
        """Response tokens of all sequences, int64 [N]."""
        tokens = [response.tokens for group in self.groups for response in group.responses]
        return torch.from_numpy(np.concatenate(tokens).astype(np.int64)).to(self.device)

    def reference(self, sequences: Sequence[int]) -> Tensor | None:
        """Old log-probs of the full vocabulary, [n, V], for some sequences."""
        return None if self.old_distribution is None else self.old_distribution[self.tokens_of(sequences)]


@dataclass(frozen=True, slots=True)
class Dealer:
    """Deals the sequences of a rollout to the micro-batches of all ranks. micro_batch_tokens: pushed at most."""

    micro_batch_tokens: int
    rank: int = 0
    ranks: int = 1

    def all(self, rollout: FlatRollout, sequences: Sequence[int]) -> list[list[list[int]]]:
        """Micro-batches of every rank. On one rank sequences stay in order; on several they are shared out by cost,
        and every rank has as many micro-batches, of which some may be empty."""
        costs, budget = rollout.costs(sequences), self.micro_batch_tokens
        dealt = [split_by_tokens(*costs, budget)] if self.ranks == 1 else deal(*costs, budget, self.ranks)
        return [[[sequences[index] for index in part] for part in parts] for parts in dealt]

    def own(self, rollout: FlatRollout, sequences: Sequence[int]) -> list[list[int]]:
        """Micro-batches of this rank."""
        return self.all(rollout, sequences)[self.rank]


@dataclass
class MiniBatch:
    """This rank's sequences of one update and their tokens, without current log-probs."""

    rollout: FlatRollout
    step: int
    number: int  # of the update in its step, from 0
    last: bool  # of its step
    sequences: list[int]
    batch: TokenBatch
    micro_batches: list[list[int]]  # indices into `sequences`; on several ranks some may be empty
    current: TokenStatistics | None = None  # of a single micro-batch, where `Updater.prepare` has made them

    @property
    def single(self) -> bool:
        """True for a single micro-batch."""
        return len(self.micro_batches) == 1

    def sequences_at(self, indices: Sequence[int]) -> list[int]:
        """Sequence numbers of a micro-batch."""
        return [self.sequences[index] for index in indices]

    @property
    def parts(self) -> list[list[int]]:
        """Sequence numbers of all micro-batches."""
        return [self.sequences_at(indices) for indices in self.micro_batches]

    def select(self, plan: Plan, indices: Sequence[int]) -> tuple[TokenBatch, Plan]:
        """The tokens of a micro-batch and its part of the plan."""
        return (self.batch, plan) if self.single else (self.batch.select(indices), plan.select(indices))


def mini_batches(
    rollout: FlatRollout, advantages: Tensor, train: TrainConfig, dealer: Dealer, step: int
) -> Iterator[MiniBatch]:
    """Cut a rollout into the mini-batches of all epochs: groups in runs of even size, sequences dealt to the ranks.
    advantages: float [N]."""
    batch = rollout.batch(advantages, train.max_new_tokens)
    runs = even_chunks(rollout.group_count, train.mini_batches) * train.epochs
    for number, groups in enumerate(runs):
        parts = dealer.own(rollout, rollout.sequences_of(groups))
        sequences, ends = list(itertools.chain(*parts)), itertools.accumulate(map(len, parts), initial=0)
        places = [list(range(begin, end)) for begin, end in itertools.pairwise(ends)]
        yield MiniBatch(rollout, step, number, number == len(runs) - 1, sequences, batch.select(sequences), places)
