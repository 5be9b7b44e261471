"""Protocol by which a kind of answer compares the parts of its answers."""

from typing import Protocol


class Comparison(Protocol):
    """The comparer, as kinds see it (`comparer.Comparer`). All texts are canonical."""

    def same(self, gold: str, answer: str) -> bool:
        """Answers of any kind."""

    def one(self, gold: str, answer: str) -> bool:
        """One element on each side: a relation or a value."""

    def value(self, gold: str, answer: str) -> bool:
        """One value on each side: a group, a matrix, a quantity."""

    def expressions(self, gold: str, answer: str) -> bool:
        """Two expressions or relations, by sympy."""

    def differ(self, note: str) -> bool:
        """False, with the reason noted."""
