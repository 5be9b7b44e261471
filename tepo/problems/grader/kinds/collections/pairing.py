"""Items of two lists side by side: in order, in any order, with an elision (the progression that 1, 3, \\ldots, 99
means)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TypeVar

from tepo.problems.grader.kinds.numbers.number import parse_number
from tepo.problems.grader.kinds.protocol import Comparison

DOTS = "\\ldots"


@dataclass(frozen=True, slots=True)
class Progression:
    """first, first+step (or first*step) … up to last; last None when it goes on."""

    kind: str
    first: Fraction
    step: Fraction
    last: Fraction | None

    def terms(self, limit: int = 200) -> list[Fraction] | None:
        """All terms, None when there are more than `limit`."""
        values, value = [self.first], self.first
        if self.last is None:
            return None
        while value != self.last:
            value = value + self.step if self.kind == "sum" else value * self.step
            values.append(value)
            if len(values) > limit:
                return None
        return values


def progression(items: list[str]) -> Progression | None:
    """The arithmetic or geometric progression a list with one elision means, if its written terms fit one."""
    if items.count(DOTS) != 1:
        return None
    cut = items.index(DOTS)
    numbers = [parse_number(item) for item in items if item != DOTS]
    if cut < 2 or any(number is None for number in numbers):
        return None
    values = [number.value for number in numbers if number]
    head, tail = values[:cut], values[cut:]
    step = head[1] - head[0]
    runs = all(b - a == step for part in (head, tail) for a, b in pairwise(part))
    counts = [(value - head[-1]) / step for value in tail] if step else []
    if step and runs and all(count.denominator == 1 and count > 0 for count in counts):
        return Progression("sum", head[0], step, tail[-1] if tail else None)
    if cut >= 3 and all(head):
        factor = head[1] / head[0]
        if abs(factor) not in (0, 1) and all(b == a * factor for a, b in pairwise(head)):
            sequence = Progression("product", head[0], factor, tail[-1] if tail else None)
            return sequence if not tail or _geometric(sequence, tail) else None
    return None


def _geometric(sequence: Progression, tail: list[Fraction]) -> bool:
    value = sequence.first
    for _ in range(200):
        value *= sequence.step
        if value == tail[-1]:
            return True
        if abs(value) > abs(tail[-1]) and abs(sequence.step) > 1:
            return False
    return False


Item = TypeVar("Item")
MAX_ITEMS = 100


def same_in_order(golds: list[str], answers: list[str], compare: Comparison) -> bool:
    if DOTS in golds or DOTS in answers:
        return same_elided(golds, answers, compare, ordered=True)
    return len(golds) == len(answers) <= MAX_ITEMS and all(map(compare.same, golds, answers))


def same_in_any_order(golds: list[str], answers: list[str], compare: Comparison) -> bool:
    return len(golds) <= MAX_ITEMS and pair_off(golds, answers, compare.same)


def same_elided(golds: list[str], answers: list[str], compare: Comparison, *, ordered: bool) -> bool:
    """Lists with \\ldots: as progressions where their terms fit one, else term by term."""
    mine, theirs = progression(golds), progression(answers)
    if mine and theirs:
        return mine == theirs or compare.differ("elided sequence")
    if golds.count(DOTS) == answers.count(DOTS):
        same = len(golds) == len(answers) and all(
            a == b or (DOTS not in (a, b) and compare.same(a, b)) for a, b in zip(golds, answers, strict=True)
        )
        return same or compare.differ("elided sequence")
    terms = mine.terms() if mine else theirs.terms() if theirs else None
    if terms is None or (mine and DOTS in answers) or (theirs and DOTS in golds):
        return compare.differ("elided sequence")
    written = [str(term) for term in terms]
    same_items = same_in_order if ordered else same_in_any_order
    return same_items(written, answers, compare) if mine else same_items(golds, written, compare)


def pair_off(left: Sequence[Item], right: Sequence[Item], same: Callable[[Item, Item], bool]) -> bool:
    """Do the items pair off, in any order? Identical ones are paired first, so that few pairs need comparing."""
    if len(left) != len(right):
        return False
    candidates, rest = list(left), []
    for item in right:
        if item in candidates:
            candidates.remove(item)
        else:
            rest.append(item)
    for item in rest:
        match = next((index for index, candidate in enumerate(candidates) if same(candidate, item)), None)
        if match is None:
            return False
        del candidates[match]
    return True
