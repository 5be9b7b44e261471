"""What a worker decides: one answer against one gold, and whether a gold can be read at all.

Imported by workers only."""

from tepo.problems.grader.kinds.comparer import Comparer
from tepo.problems.grader.kinds.elements import leaves
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
        """(parsable, why not). Every leaf of the gold is read as it would be in a comparison."""
        if not canonical(gold):
            return False, "empty"
        unread = [leaf for leaf in leaves(canonical(gold)) if to_sympy(leaf) is None]
        return not unread, "cannot read " + "; ".join(unread) if unread else ""
