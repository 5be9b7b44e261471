"""The queue that all ranks share: which of them draws what.

A part is what a sampler is given at once of a group: a single response, or the group where jobs that are added together
are decoded by themselves. It is named by `number * size + index` of its first response.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

_WAITING = 4  # of the responses that an engine decodes at a time, one in so many waits there until the ranks meet again


@dataclass
class PromptQueue:
    """Parts that wait, and parts that ranks have under way.

    Every rank has a copy. It changes only when ranks meet, by what all of them know then, so that all copies are equal
    and none has to ask another what it may draw.

    size: responses of a group. side_by_side: what a rank decodes at a time, see `Sampler`. None: blocks are dealt by
    place, as what is decoded together must not depend on who was faster. whole: a part is a group there, too.
    """

    ranks: int
    size: int
    side_by_side: int | None
    whole: bool = False
    waiting: deque[int] = field(default_factory=deque)
    drawn_by: dict[int, int] = field(default_factory=dict)  # part -> rank
    load: list[int] = field(init=False)  # parts under way at each rank

    def __post_init__(self) -> None:
        self.load = [0] * self.ranks

    def add(self, prompts: range) -> None:
        """Add a block of prompts."""
        step = self.size if self.whole or self.side_by_side is None else 1
        self.waiting += range(prompts.start * self.size, prompts.stop * self.size, step)

    def deal(self) -> list[list[int]]:
        """Deal what each rank starts now: parts in the order of the prompts, each to the rank with the fewest under
        way, as long as one has room. A slow engine ends fewer, and is given fewer."""
        dealt: list[list[int]] = [[] for _ in range(self.ranks)]
        # What waits in the shared queue goes to the rank that is free first; a single one has nobody to leave it to.
        room = math.inf
        if self.side_by_side is not None and self.ranks > 1:
            room = self.side_by_side + self.side_by_side // _WAITING
            if self.whole:
                room = max(1, room // self.size)
        for place in range(len(self.waiting)):
            if self.side_by_side is None:
                rank = place % self.ranks
            else:
                rank = min(range(self.ranks), key=self.load.__getitem__)
            if self.load[rank] >= room:
                break
            dealt[rank].append(self.waiting.popleft())
            self.drawn_by[dealt[rank][-1]] = rank
            self.load[rank] += 1
        return dealt

    def ended(self, parts: Iterable[int]) -> None:
        """Take graded parts out. One that was given up before it was known to be graded is passed over."""
        for part in parts:
            if part in self.drawn_by:
                self.load[self.drawn_by.pop(part)] -= 1

    def give_up(self, end: int) -> list[int]:
        """Drop the parts of all prompts from number `end` on. Returns those that were under way."""
        first = end * self.size
        self.waiting = deque(part for part in self.waiting if part < first)
        dropped = [part for part in self.drawn_by if part >= first]
        self.ended(dropped)
        return dropped
