r"""The comparison of two answers: first what kind of answer each is, then its parts, down to leaves that are numbers
or expressions. Numbers are decided here; expressions by `symbolic`, which only worker processes have."""

import re
from collections.abc import Callable
from fractions import Fraction

from tepo.problems.grader.brackets import (
    THOUSANDS,
    Group,
    between_words,
    comma_items,
    conclusion,
    group,
    items,
    relation,
    squeezed,
    strip_parentheses,
    unconditional,
    union,
)
from tepo.problems.grader.groups import (
    ASSIGNMENT,
    DOTS,
    SIGN,
    Comparison,
    as_tuple,
    assignments,
    by_letter,
    expansions,
    is_builder,
    is_set_builder,
    is_symbol,
    listed_set,
    matrix,
    same_cases,
    same_elided,
    same_groups,
    same_in_any_order,
    same_in_order,
    same_matrices,
    same_sets,
    solution_set,
    tuple_items,
    unnamed_point,
)
from tepo.problems.grader.notations import (
    same_choice,
    same_clock,
    same_date,
    same_in_base,
    same_joined,
    same_ratio,
    same_words,
    without_articles,
)
from tepo.problems.grader.numbers import differ, parse_number, same_number
from tepo.problems.grader.relations import congruence, exact_side, has_modulus, same_relation, with_constant
from tepo.problems.grader.spelling import canonical
from tepo.problems.grader.units import same_amount
from tepo.problems.grader.wording import declared_integer, renamed_integer

_REAL = re.compile(r"[a-zA-Z] ?\\in ?\\mathbb\{R\}")
_CONDITION = re.compile(r"\\\{ ?[a-z](?: ?\\in ?\\mathbb\{R\})? ?\\mid (.+[<>].+)\\\}")


def elements(text: str) -> list[str]:
    r"""The list a text is: cut at commas and words, a set in braces opened,
    `x \neq 2, 3` with its relation repeated."""
    parts = items(text)
    parts = [part for part in parts if not _REAL.fullmatch(part)] or parts
    sides, signs = relation(parts[0])
    if len(parts) == 1:
        pieces = [group(piece) for piece in union(parts[0])]
        if len(pieces) > 1 and all(piece and piece.left == "{" and not is_builder(piece) for piece in pieces):
            return list(dict.fromkeys(item for piece in pieces if piece for item in piece.items))
        if (condition := _CONDITION.fullmatch(parts[0])) and len(conditions := items(condition[1])) > 1:
            return conditions
        asked = is_symbol(sides[0]) or all(map(is_symbol, tuple_items(sides[0]) or [""]))  # x or (x, y)
        inside = group(sides[1] if signs in (["\\in"], ["="]) and asked else parts[0])
        if inside and inside.left == "{" and inside.items and not is_builder(inside):
            return list(inside.items)
    elif signs == ["\\neq"] and not any(relation(part)[1] for part in parts[1:]):
        return [parts[0], *(f"{sides[0]} \\neq {part}" for part in parts[1:])]
    return parts


def is_listed_set(text: str) -> bool:
    """Is this a set of several elements (or none), written in braces? {x=1, y=2} is a system."""
    inside = group(text)
    if inside is None or inside.left != "{" or len(inside.items) == 1 or is_builder(inside):
        return False
    return not inside.items or not all(ASSIGNMENT.match(item) for item in inside.items)


def same_lists(gold: str, answer: str, compare: Comparison) -> bool:
    """Answers of one or more elements, each a relation or a value."""
    golds, answers = elements(gold), elements(answer)
    if any(map(tuple_items, golds)) != any(map(tuple_items, answers)):
        golds, answers = [as_tuple(item) for item in golds], [as_tuple(item) for item in answers]
    signed = SIGN.search(gold + answer) is not None
    lone_tuples = [tuple_items(side[0]) if len(side) == 1 else None for side in (golds, answers)]
    if (is_listed_set(gold) and lone_tuples[1]) or (is_listed_set(answer) and lone_tuples[0]):
        return compare.differ("brackets")
    if len(golds) == len(answers) == 1 and not signed:
        return compare.one(golds[0], answers[0])
    if not signed or "\\neq" in gold + answer:
        mine, theirs = listed_set(expansions(golds)[0]), listed_set(expansions(answers)[0])
        if mine and theirs and (mine.variable or theirs.variable or "\\cup" in gold + answer):
            return same_sets(mine, theirs, compare)
    if DOTS in golds or DOTS in answers:
        return same_elided(golds, answers, compare, ordered=False)
    if not signed and 1 in (len(golds), len(answers)):
        return _one_and_many(golds, answers, compare) or _as_list(gold, answer, compare)
    return any(
        same_in_any_order(left, right, compare) for left in expansions(golds) for right in expansions(answers)
    ) or _as_list(gold, answer, compare)


def _one_and_many(golds: list[str], answers: list[str], compare: Comparison) -> bool:
    """A tuple beside its items without brackets; one value beside several spellings of it (1/2 or 0.5)."""
    lone = golds[0] if len(golds) == 1 else answers[0]
    if named := assignments(lone):
        return same_in_any_order(*((named, answers) if len(golds) == 1 else (golds, named)), compare)
    if inside := tuple_items(lone):
        sides = (inside, by_letter(answers)) if len(golds) == 1 else (by_letter(golds), inside)
        return same_in_order(*sides, compare)
    return all(compare.same(gold, answer) for gold in golds for answer in answers)


def _as_list(gold: str, answer: str, compare: Comparison) -> bool:
    """100,200 reads as one number and as a list: take the list when the other side is one."""
    if bool(THOUSANDS.fullmatch(gold)) == bool(THOUSANDS.fullmatch(answer)):
        return False
    left, right = (comma_items(text) if THOUSANDS.fullmatch(text) else elements(text) for text in (gold, answer))
    return len(left) == len(right) and same_in_any_order(left, right, compare)


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
