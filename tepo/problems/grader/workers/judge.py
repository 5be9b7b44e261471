r"""Decisions of a worker: one answer against one gold, and whether a gold can be read at all.

Imported by workers only."""

from tepo.problems.grader.kinds.comparer import Comparer, GoldReader
from tepo.problems.grader.symbolic.compare import SymbolicComparison
from tepo.problems.grader.symbolic.parser import to_sympy
from tepo.problems.grader.text.spelling import canonical


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
        """(parsable, why not)."""
        if not canonical(gold):
            return False, "empty"
        unread = GoldReader(lambda text: to_sympy(text) is not None).unread(gold)
        return not unread, "cannot read " + "; ".join(unread) if unread else ""
