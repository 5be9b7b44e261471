"""Log-prob passes and updates on simulated GPUs: with our dealing and packing, by complete groups, and as verl does."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tepo.config.run_config import RunConfig, chosen
from tepo.planning.simulator.cards import PASSES, Training
from tepo.planning.simulator.clocked_sampler import Stream, response
from tepo.training.rollout_batch import FlatRollout, Group, even_chunks


@dataclass(frozen=True)
class Trained:
    """Seconds of the old log-probs and of all updates; imbalance: the slowest rank's over the mean, of an update."""

    logprobs: float
    updates: float
    imbalance: float


def flat(lengths: Sequence[Sequence[int]]) -> FlatRollout:
    """The rollout of such groups."""
    prompts = Stream().take(0, len(lengths))
    groups = [
        Group(prompt, [response(length, index == 0) for index, length in enumerate(group)], np.zeros(len(group)))
        for prompt, group in zip(prompts, lengths, strict=True)
    ]
    return FlatRollout(groups, torch.device("cpu"))


def ours(training: Training, config: RunConfig, lengths: Sequence[Sequence[int]], balanced: bool = True) -> Trained:
    """`FlatRollout.deal` and `pack`; not balanced: complete groups, each to the rank with the fewest tokens."""
    rollout, budget, ranks = flat(lengths), config.engine.micro_batch_tokens, training.ranks

    def part_seconds(part: Sequence[int]) -> float:
        prompts, lengths, _ = (np.array(values, dtype=float) for values in rollout.costs(part))
        return training.forward(len(rollout.pack(part).tokens), float(((prompts + lengths) ** 2).sum()))

    def seconds(sequences: Sequence[int]) -> list[float]:
        """Seconds of a forward pass, by rank."""
        if balanced:
            dealt = rollout.deal(sequences, budget, ranks)
        else:
            shares = _by_groups(rollout, sequences, ranks)
            dealt = [rollout.deal(share, budget, 1)[0] if share else [] for share in shares]
        return [sum(part_seconds(part) for part in parts if part) for parts in dealt]

    runs = even_chunks(rollout.group_count, config.train.mini_batches)
    passes = [seconds(rollout.sequences_of(groups)) for groups in runs]
    model = config.model
    pushed = PASSES + chosen(model.gradient_checkpointing) - (model.lora_rank > 0)  # frozen: no gradient of weights
    one_epoch = sum(pushed * max(each) + training.optimiser_step() for each in passes)
    imbalance = max(max(each) / np.mean(each) for each in passes)
    first = max(seconds(range(rollout.sequence_count)))
    return Trained(first, config.train.epochs * one_epoch, float(imbalance))


def _by_groups(rollout: FlatRollout, sequences: Sequence[int], ranks: int) -> list[list[int]]:
    """Complete groups, the longest first, each to the rank with the least so far."""
    groups = sorted({sequence // rollout.group_size for sequence in sequences})
    tokens = {group: int(rollout.lengths[rollout.sequences_of([group])].sum()) for group in groups}
    loads, shares = [0] * ranks, [[] for _ in range(ranks)]  # type: list[int], list[list[int]]
    for group in sorted(groups, key=lambda group: -tokens[group]):
        least = loads.index(min(loads))
        loads[least] += tokens[group]
        shares[least].append(group)
    return [rollout.sequences_of(sorted(share)) for share in shares]


def verl(training: Training, lengths: Sequence[Sequence[int]], mini_batches: int, epochs: int, prompt: int) -> Trained:
    """verl's FSDP workers: the batch is dealt to ranks in equal counts of about equal tokens, then each rank cuts its
    own part into mini-batches, so that an update waits for the rank with most tokens in it. Each response is pushed
    with its own prompt, and layers are computed again in the backward."""
    every = np.array([length for group in lengths for length in group])
    lanes, ranks = np.argsort(-every, kind="stable"), training.ranks
    columns = np.arange(len(every)) % (2 * ranks)
    owner = np.empty(len(every), dtype=int)
    owner[lanes] = np.where(columns < ranks, columns, 2 * ranks - 1 - columns)  # there and back
    shares = [every[owner == rank] + prompt for rank in range(ranks)]

    def seconds(part: np.ndarray) -> float:
        return training.forward(int(part.sum()), float((part.astype(float) ** 2).sum()))

    cut = [np.array_split(share, mini_batches) for share in shares]
    passes = [[seconds(parts[number]) for parts in cut] for number in range(mini_batches)]
    one_epoch = sum((PASSES + 1) * max(each) + training.optimiser_step() for each in passes)
    imbalance = max(max(each) / np.mean(each) for each in passes)
    return Trained(max(map(seconds, shares)), epochs * one_epoch, float(imbalance))
