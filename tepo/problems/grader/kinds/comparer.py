r"""The comparison of two canonical answers: first what kind of answer each is, then its parts, down to leaves that are
numbers or expressions. Numbers are decided here; expressions by `symbolic`, which only worker processes have."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

from tepo.problems.grader.kinds import forms, interval
from tepo.problems.grader.kinds.elements import (
    SIGN,
    as_tuple,
    assignments,
    by_letter,
    elements,
    expansions,
    is_listed_set,
    is_set_builder,
    tuple_items,
    unnamed_point,
)
from tepo.problems.grader.kinds.number import ANSWER_DIGITS, GOLD_DIGITS, Exact, parse_number
from tepo.problems.grader.kinds.quantity import same_amount
from tepo.problems.grader.kinds.relation import congruence, exact_side, has_modulus, same_relation, with_constant
from tepo.problems.grader.kinds.simple_expression import differ
from tepo.problems.grader.kinds.words import NUMBER_SETS, choice, chosen, described, options, told, words
from tepo.problems.grader.text.layout import piecewise
from tepo.problems.grader.text.remarks import declared_integer, renamed_integer
from tepo.problems.grader.text.spelling import canonical
from tepo.problems.grader.text.split import (
    THOUSANDS,
    Group,
    between_words,
    comma_items,
    conclusion,
    group,
    matrix,
    relation,
    squeezed,
    strip_parentheses,
    unconditional,
    union,
)

Item = TypeVar("Item")
Symbolic = Callable[[str, str], bool]
MAX_ITEMS = 100
_ASKED = "answer|result|value|area|volume|length|probability|sum|total|perimeter"
_LEAD = re.compile(
    rf"\\text\{{(?:(?:the )?(?:final )?(?:{_ASKED})(?: is)?:?|approximately|about|exactly|is)\}} ?(?=.)", re.IGNORECASE
)
_NOT = re.compile(r"\\not(?![a-zA-Z])")


class Undecided(Exception):
    """Only a worker, which has sympy, can decide this pair."""


class Comparer:
    """Compares answers. `symbolic` decides two expressions (None: raise Undecided instead). `note` holds why the last
    pair was found different, and `used_symbolic` whether it took more than exact comparison."""

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
        if squeezed(gold) == squeezed(answer) and gold:
            return True
        if not gold or not answer:
            return False
        if "\\text" in gold and "\\text" in answer and told(gold) == told(answer):
            return True
        for decide in (self._special, self._choice, self._verbal):
            verdict = decide(gold, answer)
            if verdict is not None:
                return verdict
        return self._lists(gold, answer)

    def differ(self, note: str) -> bool:
        """False, with the reason noted."""
        self.note = note
        return False

    def expressions(self, gold: str, answer: str) -> bool:
        """Two expressions or relations, by sympy. Raises Undecided without it."""
        if self._symbolic is None:
            raise Undecided
        self.used_symbolic = True
        return self._symbolic(gold, answer)

    def sets(self, mine: interval.SolutionSet, theirs: interval.SolutionSet) -> bool:
        """The same intervals and finite sets, in any order, of the same variable where both name one."""
        if mine.variable and theirs.variable and mine.variable != theirs.variable:
            return self.differ("variable")
        return _matched(list(mine.pieces), list(theirs.pieces), self._groups)

    # answers of a kind of their own; None when they are not of that kind

    def _special(self, gold: str, answer: str) -> bool | None:
        """Definitions by cases, numbers in a base, dates, clock times, ratios."""
        if "\\begin{cases}" in gold + answer:
            cases, given_cases = piecewise(gold), piecewise(answer)
            return self._cases(cases, given_cases) if cases and given_cases else None
        left, right = forms.based(gold), forms.based(answer)
        if left or right:
            return self._bases(left, right, gold, answer)
        day, given_day = forms.date(gold), forms.date(answer)
        if day and given_day:
            return day[:2] == given_day[:2] and day[2] in (None, given_day[2])
        clock, shown = forms.time(gold), forms.time(answer)
        if clock and shown:
            return forms.same_time(clock, shown)
        if any(time and ":" in text and (time[3] or ":0" in text) for time, text in ((clock, gold), (shown, answer))):
            return self.differ("clock time")
        terms, given = forms.ratio(gold), forms.ratio(answer)
        if terms and given:
            same = len(terms) == len(given) and all(self._value(a, b) for a, b in zip(terms, given, strict=True))
            return same or self.differ("ratio")
        if terms or given:
            return self._ratio_as_fraction(terms or given or [], answer if terms else gold)
        return None

    def _cases(self, gold: list[tuple[str, str]], answer: list[tuple[str, str]]) -> bool:
        """The same values under the same conditions, in any order;
        "otherwise" is the one condition that the other side writes out."""
        free = all(any(not condition for _, condition in side) for side in (gold, answer))

        def same_case(mine: tuple[str, str], theirs: tuple[str, str]) -> bool:
            otherwise = mine[1] == theirs[1] if free else not mine[1] or not theirs[1]
            return self.same(mine[0], theirs[0]) and (otherwise or self.same(mine[1], theirs[1]))

        return _matched(list(gold), list(answer), same_case) or self.differ("cases")

    def _bases(
        self, left: tuple[str, int] | None, right: tuple[str, int] | None, gold: str, answer: str
    ) -> bool | None:
        """Bases must agree where both are written; an answer may leave the gold's base out, but not add one."""
        if left and right:
            return left == right or self.differ("base")
        if left:
            plain = re.sub(r"[ ,]|\\text\{([^{}]*)\}", r"\1", answer).upper()
            return (plain.lstrip("0") or "0") == left[0] or self.differ("base")
        number = parse_number(gold)
        if not right or number is None:
            return None
        return (right[1] == 10 and number.value == int(right[0])) or self.differ("base")

    def _ratio_as_fraction(self, terms: list[str], other: str) -> bool | None:
        """2:3 beside 2/3; not 4:6 beside 2/3."""
        number, parts = parse_number(other), [parse_number(term) for term in terms]
        if len(parts) > 2:  # no number is a ratio of three, though a parser may read it as a chain of divisions
            return self.differ("ratio")
        if number is None or not all(parts):
            return None
        pair = tuple(part.value for part in parts if part)
        return pair == (number.value.numerator, number.value.denominator) or self.differ("ratio")

    def _choice(self, gold: str, answer: str) -> bool | None:
        if ("," in gold) != ("," in answer) and (several := options(gold)) and several == options(answer):
            return True
        mine, theirs = choice(gold), choice(answer)
        if mine and theirs and (mine[1] or theirs[1] or (mine[0] in "ABCDE" and theirs[0].upper() in "ABCDE")):
            return mine[0].upper() == theirs[0].upper()
        picked = chosen(answer)
        if picked and mine and (mine[0].isupper() or mine[1]):
            return picked[0] == mine[0].upper()
        if picked and not mine and not chosen(gold):
            return self.same(gold, picked[1])
        if mine and mine[1] and parse_number(answer):
            return False
        stated = chosen(gold)
        if stated and theirs:
            return stated[0] == theirs[0].upper()
        if stated and picked:
            return (stated[0] == picked[0] and self.same(stated[1], picked[1])) or None
        return (stated is not None and self.same(stated[1], answer)) or None

    def _verbal(self, gold: str, answer: str) -> bool | None:
        left, right = words(gold), words(answer)
        if left is not None and right is not None:
            return left == right or described(left, right)
        if (left is None and right is None) or NUMBER_SETS.intersection((left, right)):
            return None
        word, other = (left, answer) if left is not None else (right, gold)
        if word and (word[0].isdigit() or word.startswith("\\frac")):
            return self.same(word, other)
        if word == other.casefold():  # odd, written without \text{}, could be a product
            return True
        return None if relation(other)[1] else False

    # lists, tuples, sets

    def _lists(self, gold: str, answer: str) -> bool:
        golds, answers = elements(gold), elements(answer)
        if any(map(tuple_items, golds)) != any(map(tuple_items, answers)):
            golds, answers = [as_tuple(item) for item in golds], [as_tuple(item) for item in answers]
        signed = SIGN.search(gold + answer) is not None
        lone = (
            tuple_items(answers[0]) if len(answers) == 1 else None,
            tuple_items(golds[0]) if len(golds) == 1 else None,
        )
        if (is_listed_set(gold) and lone[0]) or (is_listed_set(answer) and lone[1]):
            return self.differ("brackets")
        if len(golds) == len(answers) == 1 and not signed:
            return self._one(golds[0], answers[0])
        if not signed or "\\neq" in gold + answer:
            mine, theirs = interval.listed_set(expansions(golds)[0]), interval.listed_set(expansions(answers)[0])
            if mine and theirs and (mine.variable or theirs.variable or "\\cup" in gold + answer):
                return self.sets(mine, theirs)
        if forms.DOTS in golds or forms.DOTS in answers:
            return self._elided(golds, answers, ordered=False)
        if not signed and 1 in (len(golds), len(answers)):
            return self._one_and_many(golds, answers) or self._as_list(gold, answer)
        return any(
            self._unordered(left, right) for left in expansions(golds) for right in expansions(answers)
        ) or self._as_list(gold, answer)

    def _one_and_many(self, golds: list[str], answers: list[str]) -> bool:
        """A tuple beside its items without brackets; one value beside several spellings of it (1/2 or 0.5)."""
        named = assignments(golds[0]) if len(golds) == 1 else assignments(answers[0])
        if named:
            return self._unordered(named, answers) if len(golds) == 1 else self._unordered(golds, named)
        if len(golds) == 1:
            inside = tuple_items(golds[0])
            return (
                self._ordered(inside, by_letter(answers))
                if inside
                else all(self.same(golds[0], item) for item in answers)
            )
        inside = tuple_items(answers[0])
        return self._ordered(by_letter(golds), inside) if inside else all(self.same(item, answers[0]) for item in golds)

    def _as_list(self, gold: str, answer: str) -> bool:
        """100,200 reads as one number and as a list: take the list when the other side is one."""
        if bool(THOUSANDS.fullmatch(gold)) == bool(THOUSANDS.fullmatch(answer)):
            return False
        left, right = (comma_items(text) if THOUSANDS.fullmatch(text) else elements(text) for text in (gold, answer))
        return len(left) == len(right) and self._unordered(left, right)

    def _ordered(self, golds: list[str], answers: list[str]) -> bool:
        if forms.DOTS in golds or forms.DOTS in answers:
            return self._elided(golds, answers, ordered=True)
        return len(golds) == len(answers) <= MAX_ITEMS and all(
            self.same(a, b) for a, b in zip(golds, answers, strict=True)
        )

    def _unordered(self, golds: list[str], answers: list[str]) -> bool:
        return len(golds) <= MAX_ITEMS and _matched(list(golds), list(answers), self.same)

    def _elided(self, golds: list[str], answers: list[str], *, ordered: bool) -> bool:
        """Lists with \\ldots: as progressions where their terms fit one, else term by term."""
        mine, theirs = forms.progression(golds), forms.progression(answers)
        if mine and theirs:
            return mine == theirs or self.differ("elided sequence")
        if golds.count(forms.DOTS) == answers.count(forms.DOTS):
            same = len(golds) == len(answers) and all(
                a == b or (forms.DOTS not in (a, b) and self.same(a, b)) for a, b in zip(golds, answers, strict=True)
            )
            return same or self.differ("elided sequence")
        terms = mine.terms() if mine else theirs.terms() if theirs else None
        if terms is None or (mine and forms.DOTS in answers) or (theirs and forms.DOTS in golds):
            return self.differ("elided sequence")
        written = [str(term) for term in terms]
        compare = self._ordered if ordered else self._unordered
        return compare(written, answers) if mine else compare(golds, written)

    # one element on each side

    def _one(self, gold: str, answer: str) -> bool:
        gold, answer = with_constant(exact_side(gold), exact_side(answer))
        if len(_NOT.findall(gold)) != len(_NOT.findall(answer)):
            return self.differ("negated relation")
        if relation(gold)[1] or relation(answer)[1]:
            return same_relation(gold, answer, self)
        if has_modulus(gold) and has_modulus(answer):
            return congruence(gold, answer, self)
        if is_set_builder(gold) or is_set_builder(answer):
            mine, theirs = interval.solution_set([gold]), interval.solution_set([answer])
            return self.sets(mine, theirs) if mine and theirs else self._leaf(gold, answer)
        return self._value(gold, answer)

    def _value(self, gold: str, answer: str) -> bool:
        if tuple_items(gold) and tuple_items(answer):
            gold, answer = unnamed_point(gold), unnamed_point(answer)
        left, right = group(gold), group(answer)
        if _is_collection(gold, left) != _is_collection(answer, right) and (parse_number(gold) or parse_number(answer)):
            return False  # a tuple, an interval or a union is no number
        if left and right and (max(len(left.items), len(right.items)) > 1 or "{" in left.left + right.left):
            return self._groups(left, right)
        gold, answer = strip_parentheses(gold), strip_parentheses(answer)
        mine, theirs = matrix(gold), matrix(answer)
        if mine and theirs:
            return self._matrices(mine, theirs)
        gold, answer = _LEAD.sub("", gold), _LEAD.sub("", answer)
        if len(union(gold)) > 1 or len(union(answer)) > 1:
            one, other = interval.solution_set([gold]), interval.solution_set([answer])
            if one and other:
                return self.sets(one, other)
        same, note = same_amount(gold, answer, self._leaf)
        return same or (self.differ(note) if note != "different" else False)

    def _groups(self, gold: Group, answer: Group) -> bool:
        """Sets in any order;
        tuples and intervals in order, with the same brackets (round beside infinity either way)."""
        if (gold.left == "{") != (answer.left == "{"):
            return len(gold.items) == len(answer.items) == 1 and self.same(gold.items[0], answer.items[0])
        if gold.left == "{":
            listed, given = (
                list(dict.fromkeys(part for item in side.items for part in expansions([item])[0]))
                for side in (gold, answer)
            )
            return (
                self._elided(listed, given, ordered=False)
                if forms.DOTS in listed + given
                else self._unordered(listed, given)
            )
        if _brackets(gold) != _brackets(answer):
            return self.differ("brackets")
        return self._ordered(list(gold.items), list(answer.items))

    def _matrices(self, gold: tuple[str, list[list[str]]], answer: tuple[str, list[list[str]]]) -> bool:
        if gold[0] != answer[0] or [len(row) for row in gold[1]] != [len(row) for row in answer[1]]:
            return self.differ("shape")
        return all(
            self.same(a, b)
            for mine, theirs in zip(gold[1], answer[1], strict=True)
            for a, b in zip(mine, theirs, strict=True)
        )

    def _leaf(self, gold: str, answer: str) -> bool:
        gold, answer = strip_parentheses(gold), strip_parentheses(answer)
        if not gold or not answer:
            return False
        if squeezed(gold) == squeezed(answer):
            return True
        left, right = parse_number(gold), parse_number(answer)
        if left and right:
            return self._numbers(left, right)
        if forms.DOTS in gold or forms.DOTS in answer:
            return self.differ("elided sequence")
        (parts, names), (others, given) = between_words(gold), between_words(answer)
        if names and len(names) == len(given):  # words between values: to sympy all of it would be one product
            return squeezed("".join(names)) == squeezed("".join(given)) and all(map(self.same, parts, others))
        if not self._relative and not self._absolute and differ(gold, answer):
            return False
        return self.expressions(gold, answer)

    def _numbers(self, gold: Exact, answer: Exact) -> bool:
        difference = abs(gold.value - answer.value)
        if difference <= max(self._relative * abs(gold.value), self._absolute):
            return True
        if gold.ulp and answer.ulp:
            return max(gold.digits, answer.digits) >= 15 and difference <= abs(gold.value) / 10**14
        return answer.rounds(gold.value, ANSWER_DIGITS) or gold.rounds(answer.value, GOLD_DIGITS)


def _matched(left: list[Item], right: list[Item], same: Callable[[Item, Item], bool]) -> bool:
    """Do the items pair off, in any order? Identical ones are paired first, so that few pairs need comparing."""
    if len(left) != len(right):
        return False
    rest = []
    for item in right:
        if item in left:
            left.remove(item)
        else:
            rest.append(item)
    for item in rest:
        match = next((index for index, candidate in enumerate(left) if same(candidate, item)), None)
        if match is None:
            return False
        del left[match]
    return True


def _is_collection(text: str, inside: Group | None) -> bool:
    return (inside is not None and len(inside.items) > 1) or len(union(text)) > 1


def _brackets(piece: Group) -> tuple[str, str]:
    left = "(" if piece.items and piece.items[0].replace(" ", "") == "-\\infty" else piece.left
    right = ")" if piece.items and piece.items[-1].replace(" ", "") in ("\\infty", "+\\infty") else piece.right
    return left, right
