r"""The comparison of two answers: first what kind of answer each is, then its parts, down to leaves that are numbers
or expressions. Numbers are decided here; expressions by `symbolic`, which only worker processes have."""

import re
from collections.abc import Callable
from fractions import Fraction

from tepo.problems.grader.kinds.answer_words import same_words, without_articles
from tepo.problems.grader.kinds.choice import same_choice
from tepo.problems.grader.kinds.collections.environments import matrix, same_cases, same_matrices
from tepo.problems.grader.kinds.collections.interval import is_set_builder, same_sets, solution_set
from tepo.problems.grader.kinds.collections.lists import same_lists
from tepo.problems.grader.kinds.collections.pairing import DOTS
from tepo.problems.grader.kinds.collections.tuples import same_groups, tuple_items, unnamed_point
from tepo.problems.grader.kinds.notations import same_clock, same_date, same_in_base, same_joined, same_ratio
from tepo.problems.grader.kinds.numbers.number import parse_number, same_number
from tepo.problems.grader.kinds.numbers.quantity import same_amount
from tepo.problems.grader.kinds.numbers.simple_expression import differ
from tepo.problems.grader.kinds.relation import congruence, exact_side, has_modulus, same_relation, with_constant
from tepo.problems.grader.text.spelling import canonical
from tepo.problems.grader.text.split import (
    Group,
    between_words,
    conclusion,
    group,
    relation,
    squeezed,
    strip_parentheses,
    unconditional,
    union,
)
from tepo.problems.grader.text.wording import declared_integer, renamed_integer

Symbolic = Callable[[str, str], bool]
_NOTATIONS = (same_in_base, same_date, same_joined, same_clock, same_ratio)
"""Kinds with a notation of their own. Like choices and words they say True or False for answers of their kind and None
for others. What no kind claims is a list of one or more relations and values."""
_ASKED = "answer|result|value|area|volume|length|probability|sum|total|perimeter"
_LEAD = re.compile(
    rf"\\text\{{(?:(?:the )?(?:final )?(?:{_ASKED})(?: is)?:?|approximately|about|exactly|is)\}} ?(?=.)", re.IGNORECASE
)
_NOT = re.compile(r"\\not(?![a-zA-Z])")


class Undecided(Exception):
    """Only a worker, which has sympy, can decide this pair."""


class Comparer:
    """Compares answers. `symbolic` decides two expressions (None: raise Undecided instead). `note` holds why the last
    pair is different, and `used_symbolic` whether it took more than exact comparison."""

    def __init__(self, symbolic: Symbolic | None = None, relative: float = 0.0, absolute: float = 0.0):
        self._symbolic, self._relative, self._absolute = symbolic, Fraction(relative), Fraction(absolute)
        self.note, self.used_symbolic = "different", False

    def equal(self, gold: str, answer: str) -> bool:
        """Does the answer (as written) say the same as the gold (as written)?"""
        self.note, self.used_symbolic = "different", False
        letter = declared_integer(gold) or declared_integer(answer)
        gold, answer = canonical(gold), canonical(answer)
        if letter:
            answer = renamed_integer(gold, answer, letter)
        if ("\\implies" in gold) != ("\\implies" in answer):  # x^2=9, x>0 \implies x=3
            gold, answer = conclusion(gold), conclusion(answer)
        bare, plain = unconditional(gold), unconditional(answer)
        if (bare == gold) != (plain == answer):
            gold, answer = bare, plain
        return self.same(gold, answer)

    def same(self, gold: str, answer: str) -> bool:
        """Canonical texts of any kind."""
        if self._alike(gold, answer) and gold:
            return True
        if not gold or not answer:
            return False
        if "\\text" in gold and "\\text" in answer and without_articles(gold) == without_articles(answer):
            return True
        kinds = (same_cases,) if "\\begin{cases}" in gold + answer else _NOTATIONS
        for kind in (*kinds, same_choice, same_words):
            verdict = kind(gold, answer, self)
            if verdict is not None:
                return verdict
        return same_lists(gold, answer, self)

    def one(self, gold: str, answer: str) -> bool:
        """One element on each side: a relation or a value."""
        gold, answer = with_constant(exact_side(gold), exact_side(answer))
        if len(_NOT.findall(gold)) != len(_NOT.findall(answer)):
            return self.differ("negated relation")
        if relation(gold)[1] or relation(answer)[1]:
            return same_relation(gold, answer, self)
        if has_modulus(gold) and has_modulus(answer):
            return congruence(gold, answer, self)
        if is_set_builder(gold) or is_set_builder(answer):
            mine, theirs = solution_set([gold]), solution_set([answer])
            return same_sets(mine, theirs, self) if mine and theirs else self._leaf(gold, answer)
        return self.value(gold, answer)

    def value(self, gold: str, answer: str) -> bool:
        """One value on each side: a group in brackets, a matrix, a union, a quantity."""
        if tuple_items(gold) and tuple_items(answer):
            gold, answer = unnamed_point(gold), unnamed_point(answer)
        left, right = group(gold), group(answer)
        if _is_collection(gold, left) != _is_collection(answer, right) and (parse_number(gold) or parse_number(answer)):
            return False  # a tuple, an interval or a union is no number
        if left and right and (max(len(left.items), len(right.items)) > 1 or "{" in left.left + right.left):
            return same_groups(left, right, self)
        gold, answer = strip_parentheses(gold), strip_parentheses(answer)
        mine, theirs = matrix(gold), matrix(answer)
        if mine and theirs:
            return same_matrices(mine, theirs, self)
        gold, answer = _LEAD.sub("", gold), _LEAD.sub("", answer)
        if len(union(gold)) > 1 or len(union(answer)) > 1:
            one, other = solution_set([gold]), solution_set([answer])
            if one and other:
                return same_sets(one, other, self)
        same, note = same_amount(gold, answer, self._leaf)
        return same or (self.differ(note) if note != "different" else False)

    def _leaf(self, gold: str, answer: str) -> bool:
        """Two numbers or expressions, without their units."""
        gold, answer = strip_parentheses(gold), strip_parentheses(answer)
        if not gold or not answer:
            return False
        if self._alike(gold, answer):
            return True
        left, right = parse_number(gold), parse_number(answer)
        if left and right:
            return same_number(left, right, self._relative, self._absolute)
        if (joined := same_joined(gold, answer, self)) is not None:
            return joined
        if DOTS in gold or DOTS in answer:
            return self.differ("elided sequence")
        (parts, names), (others, given) = between_words(gold), between_words(answer)
        if names and len(names) == len(given):  # words between values: to sympy all of it would be one product
            return squeezed("".join(names)) == squeezed("".join(given)) and all(map(self.same, parts, others))
        if not self._relative and not self._absolute and differ(gold, answer):
            return False
        return self.expressions(gold, answer)

    def expressions(self, gold: str, answer: str) -> bool:
        """Two expressions or relations, by sympy. Raises Undecided without it."""
        if self._symbolic is None:
            raise Undecided
        self.used_symbolic = True
        return self._symbolic(gold, answer)

    def differ(self, note: str) -> bool:
        """False, with the reason noted."""
        self.note = note
        return False

    def _alike(self, gold: str, answer: str) -> bool:
        """The same text but for white space."""
        return squeezed(gold) == squeezed(answer)


class GoldReader(Comparer):
    """Reads a gold as a comparison would: it is compared with itself, but without a look at whether texts are the same.
    can_read: tells whether sympy can read an expression (None: raise Undecided instead)."""

    def __init__(self, can_read: Callable[[str], bool] | None = None):
        super().__init__(can_read and self._read)
        self._can_read = can_read

    def unread(self, gold: str) -> list[str]:
        """The expressions for which only the same text matches the gold: none of one that other texts can match."""
        self._unread: dict[str, None] = {}
        return [] if self.equal(gold, gold) else list(self._unread)

    def _read(self, gold: str, answer: str) -> bool:
        assert self._can_read
        if self._can_read(gold):
            return True
        self._unread[gold] = None
        return False

    def _alike(self, gold: str, answer: str) -> bool:
        return False


def _is_collection(text: str, inside: Group | None) -> bool:
    return (inside is not None and len(inside.items) > 1) or len(union(text)) > 1
