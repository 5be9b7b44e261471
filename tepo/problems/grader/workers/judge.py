r"""Decisions of a worker: one answer against one gold, and whether a gold can be read at all.

Imported by workers only."""

from tepo.problems.grader.kinds.answer_words import words
from tepo.problems.grader.kinds.choice import option_letter
from tepo.problems.grader.kinds.collections.environments import matrix, piecewise
from tepo.problems.grader.kinds.collections.lists import elements
from tepo.problems.grader.kinds.collections.pairing import DOTS
from tepo.problems.grader.kinds.collections.tuples import expansions
from tepo.problems.grader.kinds.comparer import Comparer
from tepo.problems.grader.kinds.notations import clock_time, number_in_base, ratio_terms
from tepo.problems.grader.kinds.numbers.number import parse_number
from tepo.problems.grader.kinds.numbers.quantity import quantity
from tepo.problems.grader.symbolic.compare import SymbolicComparison
from tepo.problems.grader.symbolic.parser import to_sympy
from tepo.problems.grader.text.spelling import canonical
from tepo.problems.grader.text.split import group, relation, strip_parentheses, union


def leaves(text: str) -> list[str]:
    """The parts of an answer that only sympy could read; words, plain numbers, clock times and the like are none."""
    if option_letter(text) or words(text) is not None or DOTS in text:
        return []
    if number_in_base(text) or clock_time(text) or parse_number(text):
        return []
    parts = [part for expanded in expansions(elements(text))[:1] for part in expanded]
    if parts == [text]:
        parts = _inner(text)
    if parts == [text]:
        number = strip_parentheses(quantity(text)[0])
        return [] if parse_number(number) else [number]
    return [leaf for part in parts if part for leaf in leaves(part)]


def _inner(text: str) -> list[str]:
    """One level of structure opened: a matrix, a ratio, a union, a relation, a bracketed group;
    the text itself if none."""
    rows, cases = matrix(text), piecewise(text)
    if cases:
        return [value for value, _ in cases]
    if rows:
        return [entry for row in rows[1] for entry in row]
    terms, pieces, sides = ratio_terms(text), union(text), relation(text)[0]
    if terms or len(pieces) > 1 or len(sides) > 1:
        return terms or (pieces if len(pieces) > 1 else sides)
    inside = group(text)
    return list(inside.items) if inside and (len(inside.items) > 1 or inside.left == "{") else [text]


class Decider:
    """Full comparison, with sympy behind the structural one."""

    def __init__(self, relative: float = 0.0, absolute: float = 0.0):
        self._comparer = Comparer(SymbolicComparison(relative, absolute), relative, absolute)

    def grade(self, gold: str, answer: str) -> tuple[bool, str]:
        """(correct, reason)."""
        correct = self._comparer.equal(gold, answer)
        if correct:
            return True, "symbolic" if self._comparer.used_symbolic else "exact"
        return False, self._comparer.note

    def check(self, gold: str) -> tuple[bool, str]:
        """(parsable, why not). Every leaf of the gold is read as it would be in a comparison."""
        if not canonical(gold):
            return False, "empty"
        unread = [leaf for leaf in leaves(canonical(gold)) if to_sympy(leaf) is None]
        return not unread, "cannot read " + "; ".join(unread) if unread else ""
