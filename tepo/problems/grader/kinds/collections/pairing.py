"""Items of two lists side by side: in order, in any order, with an elision."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tepo.problems.grader.kinds.collections.sequence import DOTS, progression
from tepo.problems.grader.kinds.protocol import Comparison

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
