"""Which prompts a step draws, and which of their groups it trains. The rule alone: nothing is sampled or awaited here.

A step trains the first `count` mixed groups in prompt order, whatever finishes first.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class FirstMixed:
    """The draw of a step: prompts number `start`, start + 1 … until `count` mixed groups are there, at most `cap`.

    Prompts are added in blocks, the first of as many prompts as the step before consumed (`before`; 0: there was none)
    and the others of a quarter of `count`. The bounds of blocks depend on nothing that happens in the step, so that a
    sampler which decodes a block together gives the same bits whatever the margin and the order of finishing.
    margin (at least 1): how many more prompts are under way than the keep rate asks for. At 1 prompts are added only
    when all verdicts are known.
    """

    start: int
    count: int
    cap: int
    before: int
    margin: float
    added: int = 0  # prompts drawn so far
    decided: int = 0  # prompts of which all before them and they themselves are graded
    taken: list[int] = field(default_factory=list)  # numbers of mixed groups among the decided ones, at most `count`
    verdicts: dict[int, bool] = field(default_factory=dict)  # number -> mixed?

    @property
    def complete(self) -> bool:
        """Whether no verdict to come can change what is taken."""
        return len(self.taken) == self.count or self.decided == self.cap

    @property
    def end(self) -> int:
        """The number after the last decided prompt. Once complete, the next step starts there."""
        return self.start + self.decided

    def grade(self, number: int, mixed: bool) -> None:
        """Take the verdict on an added prompt."""
        self.verdicts[number] = mixed
        while not self.complete and self.end in self.verdicts:
            if self.verdicts[self.end]:
                self.taken.append(self.end)
            self.decided += 1

    def blocks(self) -> Iterator[range]:
        """The prompts to add now, block by block."""
        if self.margin == 1 and len(self.verdicts) < self.added:
            return  # an estimate while others are under way often comes out too high, and what is added stays
        while not self.complete and self.added < min(self._wanted(), self.cap):
            size = self._block if self.added else max(self.before, self.count)
            block = range(self.start + self.added, self.start + min(self.added + size, self.cap))
            self.added += len(block)
            yield block

    @property
    def _block(self) -> int:
        return math.ceil(self.count / 4)

    def _wanted(self) -> int:
        """The decided prompts and those that should hold the missing groups, times the margin.

        The keep rate is that of the groups graded in this step. The step before counts like one block, so that the
        first verdicts, which are those on short responses, do not decide alone. Fractions: no prompt by rounding.
        """
        rate_before = Fraction(self.count, max(self.before, self.count))
        mixed, graded = sum(self.verdicts.values()), len(self.verdicts)
        rate = (mixed + self._block * rate_before) / (graded + self._block)
        return self.decided + math.ceil((self.count - len(self.taken)) / rate * Fraction(self.margin))
