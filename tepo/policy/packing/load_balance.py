"""Sequences dealt to ranks by cost, so that all ranks of an update are done at the same time.

What is trained does not depend on it: denominators are those of the full mini-batch, and ranks add up.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Context at which a token's attention costs as much as its matrix products, 2 N / (4 layers heads head_dim): 35k for
# Qwen2.5-7B, 34k for Qwen3-14B, 48k for Qwen2.5-32B. Of a small model long responses cost up to a tenth more.
_ATTENTION = 35_000
_EVEN = 1.005  # cost of the heaviest rank over the mean, at which sequences are no longer exchanged
_ALIKE = 1.05  # the same of a rank's micro-batches: to cut fewer groups counts for more, while they fit
_TIGHT = 0.97  # cost over pushed tokens grows with the length: a part of the mean cost may push a little more


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequences to deal, int64 [S] each."""

    prompts: np.ndarray  # tokens of the prompt of each sequence
    responses: np.ndarray  # tokens of its response
    groups: np.ndarray  # its group

    @property
    def costs(self) -> np.ndarray:
        """Cost of each response, in tokens of a short one."""
        return self.responses * (1 + (self.prompts + self.responses / 2) / _ATTENTION)

    @property
    def prompt_costs(self) -> np.ndarray:
        """Cost of each prompt, which is pushed once for the responses that lie together."""
        return self.prompts * (1 + self.prompts / (2 * _ATTENTION))

    def cost(self, part: Sequence[int]) -> float:
        """Cost of a part, each of its prompts counted once."""
        chosen, firsts = self._chosen(part)
        return float(self.costs[chosen].sum() + self.prompt_costs[firsts].sum())

    def pushed(self, part: Sequence[int]) -> int:
        """Tokens of a part that go through the model, see `packing`."""
        chosen, firsts = self._chosen(part)
        return int(np.maximum(self.responses[chosen] - 1, 0).sum() + self.prompts[firsts].sum())

    def _chosen(self, part: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Sequences of a part, and of each of its groups the first."""
        chosen = np.asarray(part, dtype=np.int64)
        return chosen, chosen[np.unique(self.groups[chosen], return_index=True)[1]]

    def fits(self, part: Sequence[int], budget: int) -> bool:
        """Tell whether a part is a micro-batch: one sequence may be above the budget."""
        return len(part) < 2 or self.pushed(part) <= budget


def deal(
    prompts: Sequence[int], responses: Sequence[int], groups: Sequence[int], budget: int, ranks: int
) -> list[list[list[int]]]:
    """For each rank its micro-batches: lists of indices into the arguments, which are per sequence.

    Ranks cost about the same, and so do the micro-batches of a rank, the heaviest first. All ranks have the same number
    of them, as sharded engines need: the smallest with which each holds at most `budget` pushed tokens. A sequence
    above the budget has one to itself. Where a rank has fewer sequences than that, some are empty. A group stays
    together where that does not cost balance. Deterministic: depends on the arguments alone.
    """
    sequences = Sequences(*(np.asarray(values, dtype=np.int64) for values in (prompts, responses, groups)))
    shares = _spread(sequences, range(len(prompts)), ranks, _EVEN)
    fewest = max(1, *(min(len(share), math.ceil(sequences.pushed(share) / budget)) for share in shares))
    for count in itertools.count(fewest):
        dealt = []
        for share in shares:  # in `count` micro-batches of about the same cost, as even as it takes to fit
            if count >= len(share):
                dealt.append([[index] for index in share] + [[] for _ in range(count - len(share))])
                continue
            even = max(_EVEN, min(_ALIKE, _TIGHT * budget * count / sequences.pushed(share)))
            dealt.append(_spread(sequences, sorted(share), count, even))
        if all(sequences.fits(part, budget) for parts in dealt for part in parts):
            break
    _level(sequences, dealt, _EVEN, budget)
    return [[sorted(part) for part in sorted(parts, key=sequences.cost, reverse=True)] for parts in dealt]


def _spread(sequences: Sequences, chosen: Sequence[int], count: int, even: float) -> list[list[int]]:
    """Some sequences in `count` parts of about the same cost, by exchanges between them: from complete groups, and from
    runs of neighbours, which cut few groups; what costs less."""
    candidates = []
    enough = len(np.unique(sequences.groups[list(chosen)])) >= count
    for start in (_groups, _runs) if enough else (_runs,):
        parts = start(sequences, chosen, count)
        _level(sequences, [[part] for part in parts], even, None)
        candidates.append(parts)
    return min(candidates, key=lambda parts: max(map(sequences.cost, parts)))


def _groups(sequences: Sequences, chosen: Sequence[int], count: int) -> list[list[int]]:
    """Complete groups, the dearest first, each to the part with the least so far."""
    members: dict[int, list[int]] = {}
    for index in chosen:
        members.setdefault(int(sequences.groups[index]), []).append(index)
    parts: list[list[int]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for group in sorted(members.values(), key=sequences.cost, reverse=True):
        least = loads.index(min(loads))
        parts[least] += group
        loads[least] += sequences.cost(group)
    return parts


def _runs(sequences: Sequences, chosen: Sequence[int], count: int) -> list[list[int]]:
    """Runs of neighbours, cut where the cost is."""
    costs = sequences.costs[list(chosen)]
    middles = np.cumsum(costs) - costs / 2
    parts: list[list[int]] = [[] for _ in range(count)]
    for index, middle in zip(chosen, middles, strict=True):
        parts[min(int(middle / costs.sum() * count), count - 1)].append(index)
    return parts


def _level(sequences: Sequences, ranks: list[list[list[int]]], even: float, budget: int | None) -> None:
    """Exchange sequences with the heaviest rank until it costs at most `even` times the mean, or none helps."""
    loads = [sum(map(sequences.cost, parts)) for parts in ranks]
    while max(loads) > even * sum(loads) / len(loads):
        heavy, *lighter = sorted(range(len(ranks)), key=lambda rank: -loads[rank])
        for light in reversed(lighter):
            ahead = loads[heavy] - loads[light]
            pairs = itertools.product(filter(None, ranks[heavy]), ranks[light])
            if any(_exchange(sequences, mine, theirs, ahead, budget) for mine, theirs in pairs):
                loads[heavy], loads[light] = (sum(map(sequences.cost, ranks[rank])) for rank in (heavy, light))
                break
        else:
            break


def _exchange(sequences: Sequences, heavy: list[int], light: list[int], ahead: float, budget: int | None) -> bool:
    """Move the sequence, or swap the two, that leaves the dearer of two ranks cheapest; False when none does.

    heavy, light: a part of each. ahead: what the first rank costs more than the second."""
    mine, theirs = np.array(heavy), np.array([*light, -1])  # -1: nothing comes back
    costs, prompts = np.append(sequences.costs, 0.0), np.append(sequences.prompt_costs, 0.0)
    groups = np.append(sequences.groups, -1)
    in_heavy, in_light = Counter(groups[mine].tolist()), Counter(groups[theirs].tolist())

    def members(counted: Counter[int], indices: np.ndarray) -> np.ndarray:
        return np.array([counted[group] for group in groups[indices].tolist()])

    same = groups[mine][:, None] == groups[theirs][None, :]  # then neither part gains or loses a prompt
    lost = costs[mine] + prompts[mine] * (members(in_heavy, mine) == 1)
    gained = costs[mine] + prompts[mine] * (members(in_light, mine) == 0)
    lost_back = costs[theirs] + prompts[theirs] * (members(in_light, theirs) == 1)
    gained_back = costs[theirs] + prompts[theirs] * (members(in_heavy, theirs) == 0)
    difference = costs[mine][:, None] - costs[theirs][None, :]
    after_heavy = ahead - np.where(same, difference, lost[:, None] - gained_back[None, :])
    after_light = np.where(same, difference, gained[:, None] - lost_back[None, :])
    after = np.maximum(after_heavy, after_light)
    row, column = np.unravel_index(int(after.argmin()), after.shape)
    if after[row, column] >= ahead - 1e-6:
        return False
    given_away, come = [heavy[row]], [] if theirs[column] < 0 else [light[column]]
    new_heavy = [index for index in heavy if index not in given_away] + come
    new_light = [index for index in light if index not in come] + given_away
    if budget is not None and not (sequences.fits(new_heavy, budget) and sequences.fits(new_light, budget)):
        return False
    heavy[:], light[:] = new_heavy, new_light
    return True
