"""Dynamic sampling (DAPO section 3.2): the prompts that a step draws, and the groups that it trains. The rule alone:
nothing is sampled or awaited here.

A step trains the first `count` mixed groups in prompt order, whatever finishes first.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class DynamicSampling:
    """The draw of a step: prompts number `start`, start + 1 … until `count` mixed groups are there, at most `cap`.

    size: responses of a group, which may be graded one by one. Prompts are added in blocks, the first of as many
    prompts as the step before consumed (`before`; 0: there was none) and the others of `block`. The bounds of blocks
    depend on nothing that happens in the step, so that a sampler which decodes a block together gives the same bits
    whatever the margin and the order of finishing.
    margin (at least 1): how many more prompts are under way than the keep rate asks for. At 1 prompts are added only
    when all verdicts are known.
    every: each group is taken, mixed or not; then `cap` is `count`.
    """

    start: int
    count: int
    cap: int
    before: int
    margin: float
    size: int
    block: int
    every: bool = False
    added: int = 0  # prompts drawn so far
    seen: dict[int, set[float]] = field(default_factory=dict)  # the different rewards of each prompt added
    graded: dict[int, int] = field(default_factory=dict)  # the number of its graded responses
    mixed: set[int] = field(default_factory=set)  # groups known to be taken, which may be before all is graded

    def grade(self, number: int, rewards: Sequence[float]) -> None:
        """Take the rewards of some responses to an added prompt."""
        self.seen[number] |= set(rewards)
        self.graded[number] += len(rewards)
        if len(self.seen[number]) > 1:
            self.mixed.add(number)

    @property
    def taken(self) -> list[int]:
        """Numbers of the groups to train, once complete."""
        return [number for number in range(self.start, min(self.end, self.start + self.added)) if number in self.mixed]

    @property
    def end(self) -> int:
        """No prompt from this number on is needed, whatever is still to come: so many groups before it are known to be
        mixed. It can only fall, and once complete, the next step starts there."""
        missing = self.count
        for number in range(self.start, self.start + self.added):
            missing -= number in self.mixed
            if not missing:
                return number + 1
        return self.start + self.cap

    @property
    def complete(self) -> bool:
        """True once all groups are there that decide what is taken."""
        return all(number in self.graded and self._full(number) for number in range(self.start, self.end))

    def blocks(self) -> Iterator[range]:
        """The prompts to add now, block by block."""
        target = min(self._wanted(), self.cap)
        while self.added < target:
            size = self.block if self.added else max(self.before, self.count)
            block = range(self.start + self.added, self.start + min(self.added + size, self.cap))
            self.added += len(block)
            self.seen |= {number: set() for number in block}
            self.graded |= dict.fromkeys(block, 0)
            if self.every:
                self.mixed |= set(block)
            yield block

    def _full(self, number: int) -> bool:
        return self.graded[number] == self.size

    def _wanted(self) -> int:
        """Count the prompts to have added by now: enough to hold the missing groups at the keep rate, and `margin`
        times as many of those that are not graded yet. Prompts that are added stay.

        The keep rate is that of the groups graded in this step. Complete ones count: a mixed group is known early, one
        that is not only at its end. The step before counts like a quarter of `count`, so that the first groups, which
        are those with short responses, do not decide alone. Fractions: no prompt by rounding.
        """
        full = [number in self.mixed for number in self.graded if self._full(number)]
        if self.end < self.start + self.cap or (self.margin == 1 and len(full) < self.added):
            return 0  # without a margin: an estimate while others are under way often comes out too high
        prior = math.ceil(self.count / 4)
        rate = (sum(full) + prior * Fraction(self.count, max(self.before, self.count))) / (len(full) + prior)
        return len(full) + math.ceil((self.count - sum(full)) / rate * Fraction(self.margin))
