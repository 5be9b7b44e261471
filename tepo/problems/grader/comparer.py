r"""The comparison of two answers: first what kind of answer each is, then its parts, down to leaves that are numbers
or expressions. Numbers are decided here; expressions by `symbolic`, which only worker processes have."""

import re
from collections.abc import Callable
from fractions import Fraction

from tepo.problems.grader import brackets, groups, notations, relations
from tepo.problems.grader.brackets import THOUSANDS, cut, group, relation, squeezed, strip_parentheses, union
from tepo.problems.grader.groups import DOTS, expansions, is_builder, is_symbol, same_in_any_order, tuple_items
from tepo.problems.grader.numbers import differ, parse_number, same_number
from tepo.problems.grader.spelling import canonical
from tepo.problems.grader.units import same_amount
from tepo.problems.grader.wording import declared_integer, renamed_integer

_NOTATIONS = (
    notations.same_in_base, notations.same_date, notations.same_joined, notations.same_clock, notations.same_ratio
)  # fmt: skip
"""Kinds with a notation of their own. Like choices and words they say True or False for answers of their kind and None
for others. What no kind claims is a list of one or more relations and values."""
_ASKED = "answer|result|value|area|volume|length|probability|sum|total|perimeter"
_LEAD = re.compile(
    rf"\\text\{{(?:(?:the )?(?:final )?(?:{_ASKED})(?: is)?:?|approximately|about|exactly|is)\}} ?(?=.)", re.IGNORECASE
)
_CONSTANT = re.compile(r"(.*\+ ?)([cC])")  # of an integration, which has either case: x^2 + C beside x^2 + c
_NOT = re.compile(r"\\not(?![a-zA-Z])")
_REAL = re.compile(r"[a-zA-Z] ?\\in ?\\mathbb\{R\}")
_CONDITION = re.compile(r"\\\{ ?[a-z](?: ?\\in ?\\mathbb\{R\})? ?\\mid (.+[<>].+)\\\}")


class Undecided(Exception):
    """Only a worker, which has sympy, can decide this pair."""


class Comparer:
    """Compares answers. `symbolic` decides two expressions (None: raise Undecided instead). `note` holds why the last
    pair is different, and `used_symbolic` whether it took more than exact comparison. literal: whether the same text
    is enough to be equal."""

    def __init__(
        self,
        symbolic: Callable[[str, str], bool] | None = None,
        relative: float = 0.0,
        absolute: float = 0.0,
        *,
        literal: bool = True,
    ):
        self._symbolic, self._relative, self._absolute = symbolic, Fraction(relative), Fraction(absolute)
        self._literal, self.note, self.used_symbolic = literal, "different", False

    def equal(self, gold: str, answer: str) -> bool:
        """Does the answer (as written) say the same as the gold (as written)?"""
        self.note, self.used_symbolic = "different", False
        letter = declared_integer(gold) or declared_integer(answer)
        gold, answer = canonical(gold), canonical(answer)
        if letter:
            answer = renamed_integer(gold, answer, letter)
        if ("\\implies" in gold) != ("\\implies" in answer):  # x^2=9, x>0 \implies x=3
            gold, answer = (cut(text, brackets.IMPLIES)[0][-1] for text in (gold, answer))
        bare, plain = brackets.unconditional(gold), brackets.unconditional(answer)
        if (bare == gold) != (plain == answer):
            gold, answer = bare, plain
        return self.same(gold, answer)

    def same(self, gold: str, answer: str) -> bool:
        """Canonical texts of any kind."""
        if self._alike(gold, answer) and gold:
            return True
        if not gold or not answer:
            return False
        plain = notations.without_articles
        if "\\text" in gold and "\\text" in answer and plain(gold) == plain(answer):
            return True
        kinds = (groups.same_cases,) if "\\begin{cases}" in gold + answer else _NOTATIONS
        for kind in (*kinds, notations.same_choice, notations.same_words):
            verdict = kind(gold, answer, self)
            if verdict is not None:
                return verdict
        return self._lists(gold, answer)

    def _lists(self, gold: str, answer: str) -> bool:
        """Answers of one or more elements, each a relation or a value."""
        golds, answers = _elements(gold), _elements(answer)
        if any(map(tuple_items, golds)) != any(map(tuple_items, answers)):
            golds, answers = list(map(groups.as_tuple, golds)), list(map(groups.as_tuple, answers))
        signed = groups.SIGN.search(gold + answer) is not None
        mine, theirs = (tuple_items(side[0]) if len(side) == 1 else None for side in (golds, answers))
        if (_is_listed_set(gold) and theirs) or (_is_listed_set(answer) and mine):
            return self.differ("brackets")
        if len(golds) == len(answers) == 1 and not signed:
            return self._element(golds[0], answers[0])
        if not signed or "\\neq" in gold + answer:
            lists = expansions(golds)[0], expansions(answers)[0]
            left, right = map(groups.solution_set, lists)
            alone = any(len(texts) == 1 and "\\neq" in texts[0] for texts in lists)
            if left and right and not alone and (left.variable or right.variable or "\\cup" in gold + answer):
                return groups.same_sets(left, right, self)
        if DOTS in golds or DOTS in answers:
            return groups.same_elided(golds, answers, self, ordered=False)
        if not signed and 1 in (len(golds), len(answers)):
            same = self._one_and_many(golds, answers)
        else:
            pairs = ((left, right) for left in expansions(golds) for right in expansions(answers))
            same = any(same_in_any_order(left, right, self) for left, right in pairs)
        if same or bool(THOUSANDS.fullmatch(gold)) == bool(THOUSANDS.fullmatch(answer)):
            return same
        # 100,200 reads as one number and as a list: a list where the other side is one
        listed = brackets.comma_items
        golds, answers = (listed(text) if THOUSANDS.fullmatch(text) else _elements(text) for text in (gold, answer))
        return len(golds) == len(answers) and same_in_any_order(golds, answers, self)

    def _one_and_many(self, golds: list[str], answers: list[str]) -> bool:
        """A tuple beside its items without brackets; one value beside several spellings of it (1/2 or 0.5)."""
        lone = golds[0] if len(golds) == 1 else answers[0]
        if named := groups.assignments(lone):
            return same_in_any_order(*((named, answers) if len(golds) == 1 else (golds, named)), self)
        if inside := tuple_items(lone):
            by_letter = groups.by_letter
            sides = (inside, by_letter(answers)) if len(golds) == 1 else (by_letter(golds), inside)
            return groups.same_in_order(*sides, self)
        return all(self.same(gold, answer) for gold in golds for answer in answers)

    def _element(self, gold: str, answer: str) -> bool:
        """One element on each side: a relation or a value."""
        gold, answer = relations.exact_side(gold), relations.exact_side(answer)
        mine, theirs = _CONSTANT.fullmatch(gold), _CONSTANT.fullmatch(answer)
        if mine and theirs and not re.search(r"(?<![a-zA-Z\\])[cC](?![a-zA-Z])", mine[1] + theirs[1]):
            answer = f"{theirs[1]}{mine[2]}"
        if len(_NOT.findall(gold)) != len(_NOT.findall(answer)):
            return self.differ("negated relation")
        if relation(gold)[1] or relation(answer)[1]:
            return relations.same_relation(gold, answer, self)
        if relations.MODULUS.search(gold) and relations.MODULUS.search(answer):
            return relations.congruence(gold, answer, self)
        if any((inside := group(text)) and is_builder(inside) for text in (gold, answer)):
            same = groups.same_solutions(gold, answer, self)
            return self._leaf(gold, answer) if same is None else same
        return self.value(gold, answer)

    def value(self, gold: str, answer: str) -> bool:
        """One value on each side: a group in brackets, a matrix, a union, a quantity."""
        if tuple_items(gold) and tuple_items(answer):
            gold, answer = groups.unnamed_point(gold), groups.unnamed_point(answer)
        left, right = group(gold), group(answer)
        mine, theirs = (
            (inside is not None and len(inside.items) > 1) or len(union(text)) > 1
            for inside, text in ((left, gold), (right, answer))
        )
        if mine != theirs and (parse_number(gold) or parse_number(answer)):
            return False  # a tuple, an interval or a union is no number
        if left and right and (max(len(left.items), len(right.items)) > 1 or "{" in left.left + right.left):
            return groups.same_groups(left, right, self)
        gold, answer = strip_parentheses(gold), strip_parentheses(answer)
        if (entries := groups.same_matrices(gold, answer, self)) is not None:
            return entries
        gold, answer = _LEAD.sub("", gold), _LEAD.sub("", answer)
        if max(len(union(gold)), len(union(answer))) > 1:
            united = groups.same_solutions(gold, answer, self)
            if united is not None:
                return united
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
        if (joined := notations.same_joined(gold, answer, self)) is not None:
            return joined
        if DOTS in gold or DOTS in answer:
            return self.differ("elided sequence")
        (parts, names), (others, other_names) = (cut(text, brackets.BETWEEN_WORDS) for text in (gold, answer))
        if names and len(names) == len(other_names):  # words between values: to sympy all of it would be one product
            return squeezed("".join(names)) == squeezed("".join(other_names)) and all(map(self.same, parts, others))
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
        return self._literal and squeezed(gold) == squeezed(answer)


def unread(gold: str, can_read: Callable[[str], bool] | None = None) -> list[str]:
    """The expressions for which only the same text matches the gold: none of one that other texts can match. It is
    compared with itself, but without a look at whether texts are the same.

    can_read: tells whether sympy can read an expression (None: raise Undecided instead)."""
    missed: dict[str, None] = {}

    def read(expression: str, _: str) -> bool:
        assert can_read
        return can_read(expression) or bool(missed.setdefault(expression))

    return [] if Comparer(can_read and read, literal=False).equal(gold, gold) else list(missed)


def _elements(text: str) -> list[str]:
    r"""The list a text is: cut at commas and words, a set in braces opened,
    `x \neq 2, 3` with its relation repeated."""
    parts = brackets.items(text)
    parts = [part for part in parts if not _REAL.fullmatch(part)] or parts
    sides, signs = relation(parts[0])
    if len(parts) == 1:
        pieces = [group(piece) for piece in union(parts[0])]
        if len(pieces) > 1 and all(piece and piece.left == "{" and not is_builder(piece) for piece in pieces):
            return list(dict.fromkeys(item for piece in pieces if piece for item in piece.items))
        if (condition := _CONDITION.fullmatch(parts[0])) and len(conditions := brackets.items(condition[1])) > 1:
            return conditions
        is_unknown = is_symbol(sides[0]) or all(map(is_symbol, tuple_items(sides[0]) or [""]))  # x or (x, y)
        inside = group(sides[1] if signs in (["\\in"], ["="]) and is_unknown else parts[0])
        if inside and inside.left == "{" and inside.items and not is_builder(inside):
            return list(inside.items)
    elif signs == ["\\neq"] and not any(relation(part)[1] for part in parts[1:]):
        return [parts[0], *(f"{sides[0]} \\neq {part}" for part in parts[1:])]
    return parts


def _is_listed_set(text: str) -> bool:
    """Is this a set of several elements (or none), written in braces? {x=1, y=2} is a system."""
    inside = group(text)
    if inside is None or inside.left != "{" or len(inside.items) == 1 or is_builder(inside):
        return False
    return not inside.items or not all(groups.ASSIGNMENT.match(item) for item in inside.items)
