r"""The comparison of two canonical answers: first what kind of answer each is, then its parts, down to leaves that are numbers
or expressions. Numbers are decided here; expressions by `symbolic`, which only worker processes have."""

import re
from collections.abc import Callable
from fractions import Fraction

from tepo.problems.grader import forms, relations
from tepo.problems.grader.canonical import canonical
from tepo.problems.grader.numbers import Exact, parse_number
from tepo.problems.grader.quantities import quantity
from tepo.problems.grader.split import THOUSANDS, Group, comma_items, group, items, matrix, relation, strip_parentheses, union
from tepo.problems.grader.units import Unit
from tepo.problems.grader.words import choice, chosen, words

Symbolic = Callable[[str, str], bool]
MAX_ITEMS = 100
_LEAD = re.compile(r"\\text\{(?:(?:the )?(?:final )?(?:answer|result|value|area|volume|length|probability|sum|total|perimeter)(?: is)?:?|approximately|about|exactly|is)\} ?(?=.)", re.IGNORECASE)
_MODULUS = re.compile(r"\(? ?\\mod ?\{? ?([^()}]+?) ?\}? ?\)?$")
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_NOT = re.compile(r"\\not(?![a-zA-Z])")
_SIGN = re.compile(r"\\pm(?![a-zA-Z])|\\mp(?![a-zA-Z])|\+ ?/ ?-")


class Undecided(Exception):
    """Only a worker, which has sympy, can decide this pair."""


class Comparer:
    """Compares answers. `symbolic` decides two expressions (None: raise Undecided instead). `note` holds why the last pair was
    found different, and `used_symbolic` whether it took more than exact comparison."""

    def __init__(self, symbolic: Symbolic | None = None, relative: float = 0.0, absolute: float = 0.0):
        self._symbolic, self._relative, self._absolute = symbolic, Fraction(relative), Fraction(absolute)
        self.note, self.used_symbolic = "different", False

    def equal(self, gold: str, answer: str) -> bool:
        """Does the answer (as written) say the same as the gold (as written)?"""
        self.note, self.used_symbolic = "different", False
        return self.same(canonical(gold), canonical(answer))

    def visit(self, gold: str, report: Callable[[str], None]) -> None:
        """Report every leaf of a gold that `symbolic` cannot read, by comparing the gold with a text that is nothing like it."""
        raise NotImplementedError

    def same(self, gold: str, answer: str) -> bool:
        """Canonical texts of any kind."""
        if gold.replace(" ", "") == answer.replace(" ", "") and gold:
            return True
        if not gold or not answer:
            return False
        for decide in (self._special, self._choice, self._verbal):
            verdict = decide(gold, answer)
            if verdict is not None:
                return verdict
        return self._lists(gold, answer)

    def _differ(self, note: str) -> bool:
        self.note = note
        return False

    def _verbal(self, gold: str, answer: str) -> bool | None:
        left, right = words(gold), words(answer)
        if left is None and right is None:
            return None
        if left is not None and right is not None:
            return left == right
        if "all real numbers" in (left, right):
            return None
        word, other = (left, answer) if left is not None else (right, gold)
        if word and word.isdigit():
            return self.same(word, other)
        return None if relation(other)[1] else False

    def _choice(self, gold: str, answer: str) -> bool | None:
        mine, theirs = choice(gold), choice(answer)
        if mine and theirs and (mine[1] or theirs[1] or (mine[0] in "ABCDE" and theirs[0].upper() in "ABCDE")):
            return mine[0].upper() == theirs[0].upper()
        picked = chosen(answer)
        if picked and mine and (mine[0].isupper() or mine[1]):
            return picked[0] == mine[0].upper()
        if picked and not mine and not chosen(gold):
            return self.same(gold, picked[1])
        picked = chosen(gold)
        if picked and theirs:
            return picked[0] == theirs[0].upper()
        return None

    def _special(self, gold: str, answer: str) -> bool | None:
        """Numbers in a base, clock times, ratios."""
        left, right = forms.based(gold), forms.based(answer)
        if left or right:
            return self._bases(left, right, gold, answer)
        clock, shown = forms.time(gold), forms.time(answer)
        if clock and shown:
            return forms.same_time(clock, shown)
        terms, given = forms.ratio(gold), forms.ratio(answer)
        if terms and given:
            same = len(terms) == len(given) and all(self._value(a, b) for a, b in zip(terms, given, strict=True))
            return same or self._differ("ratio")
        if terms or given:
            return self._ratio_as_fraction(terms or given or [], answer if terms else gold)
        return None

    def _bases(self, left: tuple[str, int] | None, right: tuple[str, int] | None, gold: str, answer: str) -> bool | None:
        """Bases must agree where both are written; an answer may leave the gold's base out, but not add one."""
        if left and right:
            return left == right or self._differ("base")
        if left:
            plain = re.sub(r"[ ,]|\\text\{([^{}]*)\}", r"\1", answer).upper()
            return (plain.lstrip("0") or "0") == left[0] or self._differ("base")
        number = parse_number(gold)
        if not right or number is None:
            return None
        return (right[1] == 10 and number.value == int(right[0])) or self._differ("base")

    def _ratio_as_fraction(self, terms: list[str], other: str) -> bool | None:
        number, parts = parse_number(other), [parse_number(term) for term in terms]
        if forms.time(":".join(terms)) and number is None:
            return None
        if number is None or len(parts) != 2 or not all(parts):
            return None
        first, second = (part.value for part in parts if part)
        lowest = second != 0 and Fraction(first, second) == number.value and (number.value.numerator, number.value.denominator) == (first, second)
        return lowest or self._differ("ratio")

    # lists, tuples, sets

    def _lists(self, gold: str, answer: str) -> bool:
        golds, answers = _elements(gold), _elements(answer)
        if (_is_listed_set(gold) and _tuple(answer)) or (_is_listed_set(answer) and _tuple(gold)):
            return self._differ("brackets")
        if len(golds) == 1 and len(answers) == 1 and not _SIGN.search(gold + answer):
            return self._one(golds[0], answers[0])
        unequal = any("\\neq" in element for element in golds + answers)
        mine, theirs = (None, None) if unequal and (len(golds) > 1 or len(answers) > 1 or _SIGN.search(gold + answer)) else (relations.solution_set(golds), relations.solution_set(answers))
        if mine and theirs and (mine.variable or theirs.variable or "\\cup" in gold + answer):
            return self._sets(mine, theirs)
        if forms.DOTS in golds or forms.DOTS in answers:
            return self._elided(golds, answers, ordered=False)
        if len(golds) == 1 and len(answers) > 1 and not _SIGN.search(gold):
            if inside := _tuple(golds[0]):
                return self._ordered(inside, answers)
            return all(self.same(gold, item) for item in answers)
        if len(answers) == 1 and len(golds) > 1 and not _SIGN.search(answer) and (inside := _tuple(answers[0])):
            return self._ordered(golds, inside)
        for left in _expansions(golds):
            for right in _expansions(answers):
                if self._unordered(left, right):
                    return True
        return self._thousands_or_list(gold, answer)

    def _thousands_or_list(self, gold: str, answer: str) -> bool:
        """100,200 reads as one number and as a list: take the list when the other side is one."""
        left, right = (comma_items(text) if THOUSANDS.fullmatch(text) else _elements(text) for text in (gold, answer))
        return (THOUSANDS.fullmatch(gold) is not None) != (THOUSANDS.fullmatch(answer) is not None) and len(left) == len(right) > 1 and self._unordered(left, right)

    def _ordered(self, golds: list[str], answers: list[str]) -> bool:
        if forms.DOTS in golds or forms.DOTS in answers:
            return self._elided(golds, answers, ordered=True)
        return len(golds) == len(answers) <= MAX_ITEMS and all(self.same(a, b) for a, b in zip(golds, answers, strict=True))

    def _unordered(self, golds: list[str], answers: list[str]) -> bool:
        """The same elements in any order. Equal texts are matched first, so that few pairs need more."""
        if len(golds) != len(answers) or len(golds) > MAX_ITEMS:
            return False
        left = list(golds)
        rest = []
        for answer in answers:
            if answer in left:
                left.remove(answer)
            else:
                rest.append(answer)
        for answer in rest:
            match = next((index for index, candidate in enumerate(left) if self.same(candidate, answer)), None)
            if match is None:
                return False
            del left[match]
        return True

    def _elided(self, golds: list[str], answers: list[str], *, ordered: bool) -> bool:
        mine, theirs = forms.progression(golds), forms.progression(answers)
        if mine and theirs:
            return mine == theirs or self._differ("elided sequence")
        if golds.count(forms.DOTS) == answers.count(forms.DOTS):
            same = len(golds) == len(answers) and all(a == b or (forms.DOTS not in (a, b) and self.same(a, b)) for a, b in zip(golds, answers, strict=True))
            return same or self._differ("elided sequence")
        terms = mine.terms() if mine else theirs.terms() if theirs else None
        if terms is None or (mine and forms.DOTS in answers) or (theirs and forms.DOTS in golds):
            return self._differ("elided sequence")
        written = [str(term) for term in terms]
        compare = self._ordered if ordered else self._unordered
        return compare(written, answers) if mine else compare(golds, written)

    # one element on each side

    def _one(self, gold: str, answer: str) -> bool:
        gold, answer = _exact_side(gold), _exact_side(answer)
        left, right = relation(gold)[1], relation(answer)[1]
        if len(_NOT.findall(gold)) != len(_NOT.findall(answer)):
            return self._differ("negated relation")
        if left or right:
            return self._relations(gold, answer, left, right)
        if _is_builder(gold) or _is_builder(answer):
            mine, theirs = relations.solution_set([gold]), relations.solution_set([answer])
            return self._sets(mine, theirs) if mine and theirs else self._leaf(gold, answer)
        return self._value(gold, answer)

    def _relations(self, gold: str, answer: str, left: list[str], right: list[str]) -> bool:
        if "\\notin" in left + right or "\\neq" in left + right:
            if ("\\neq" in left) != ("\\neq" in right) and not (left and right):
                mine, theirs = relations.solution_set([gold]), relations.solution_set([answer])
                return bool(mine and theirs and self._sets(mine, theirs)) or self._differ("negated relation")
            if left != right:
                return self._differ("negated relation")
        if "\\equiv" in left + right:
            return self._congruence(gold, answer)
        if set(left) <= {"="} and set(right) <= {"="}:
            return self._equations(gold, answer)
        mine, theirs = relations.solution_set([gold]), relations.solution_set([answer])
        if mine and theirs:
            return self._sets(mine, theirs)
        if left == ["\\in"] and not right:
            return self.same(relation(gold)[0][1], answer)
        if right == ["\\in"] and not left:
            return self.same(gold, relation(answer)[0][1])
        return self._chains(gold, answer)

    def _sets(self, mine: relations.SolutionSet, theirs: relations.SolutionSet) -> bool:
        if mine.variable and theirs.variable and mine.variable != theirs.variable:
            return self._differ("variable")
        if len(mine.pieces) != len(theirs.pieces):
            return False
        left = list(mine.pieces)
        for piece in theirs.pieces:
            match = next((index for index, candidate in enumerate(left) if self._groups(candidate, piece)), None)
            if match is None:
                return False
            del left[match]
        return True

    def _chains(self, gold: str, answer: str) -> bool:
        """Relations side by side, also read from the right (a<b is b>a)."""
        sides, signs = relation(gold)
        others, marks = relation(answer)
        for flipped in (False, True):
            if flipped:
                others, marks = others[::-1], [relations.FLIPPED.get(mark, mark) for mark in reversed(marks)]
            if signs == marks and all(self.same(a, b) if a and b else a == b for a, b in zip(sides, others, strict=True)):
                return True
        ordered = all(sign in relations.ORDER for sign in signs + marks)
        return self._leaf_relation(gold, answer) if ordered else self._differ("relation")

    def _leaf_relation(self, gold: str, answer: str) -> bool:
        if self._symbolic is None:
            raise Undecided
        self.used_symbolic = True
        return self._symbolic(gold, answer)

    def _congruence(self, gold: str, answer: str) -> bool:
        """N = 672 mod 1000: the residue, and the modulus where both give it."""
        (left, mine), (right, theirs) = (_residue(text) for text in (gold, answer))
        return self.same(left, right) and (mine is None or theirs is None or self.same(mine, theirs))

    def _equations(self, gold: str, answer: str) -> bool:
        left, right = relation(gold)[0], relation(answer)[0]
        if len(left) > 1 and len(right) > 1:
            return self._two_equations(gold, answer, left, right)
        if len(left) > 1:
            return relations.is_name(left[0]) and self.same(left[-1], answer)
        if relations.is_name(right[0]) or not any(character.isalpha() for character in "".join(right)):
            return self.same(gold, right[-1])
        return self._symbols_only(right) and self.same(gold, right[-1])

    @staticmethod
    def _symbols_only(sides: list[str]) -> bool:
        """A chain of numeric expressions such as \\frac{10}{2} = 5, whose last side is the answer."""
        return not re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", "".join(sides)))

    def _two_equations(self, gold: str, answer: str, left: list[str], right: list[str]) -> bool:
        if relations.is_symbol(left[-1]) and not relations.is_name(left[0]):
            left = left[::-1]
        if relations.is_symbol(right[-1]) and not relations.is_name(right[0]):
            right = right[::-1]
        if relations.is_name(left[0]) and relations.is_name(right[0]):
            if left[0].replace(" ", "") == right[0].replace(" ", ""):
                solved = relations.is_symbol(left[0]) and left[0] not in left[-1] + right[-1]
                if self.same(left[-1], right[-1]):
                    return True
                if solved or "(" in left[0]:
                    return False
            renamed = _rename_argument(left[0], right[0], right[-1])
            if renamed is not None:
                return self.same(left[-1], renamed)
            if _is_call_and_y(left[0], right[0]):
                return self.same(left[-1], right[-1])
            constant = not re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", left[-1] + right[-1]))
            if constant and relations.is_symbol(left[0]) and relations.is_symbol(right[0]):
                return self._differ("variable") if left[0] != right[0] else False
        return self._leaf_relation(gold, answer)

    # values

    def _value(self, gold: str, answer: str) -> bool:
        left, right = group(gold), group(answer)
        if left and right and (len(left.items) > 1 or len(right.items) > 1 or left.left != right.left):
            if not (len(left.items) == len(right.items) == 1 and "{" not in left.left + right.left):
                return self._groups(left, right)
        gold, answer = strip_parentheses(gold), strip_parentheses(answer)
        mine, theirs = matrix(gold), matrix(answer)
        if mine and theirs:
            return self._matrices(mine, theirs)
        gold, answer = _LEAD.sub("", gold), _LEAD.sub("", answer)
        if len(union(gold)) > 1 or len(union(answer)) > 1:
            one, other = relations.solution_set([gold]), relations.solution_set([answer])
            if one and other:
                return self._sets(one, other)
        return self._quantities(gold, answer)

    def _groups(self, gold: Group, answer: Group) -> bool:
        """Sets in any order; tuples and intervals in order, with the same brackets (round beside infinity either way)."""
        if (gold.left == "{") != (answer.left == "{"):
            single = gold if gold.left == "{" else answer
            return len(single.items) == 1 == len(gold.items) == len(answer.items) and self.same(gold.items[0], answer.items[0])
        if gold.left == "{":
            listed, given = (list(dict.fromkeys(part for item in side.items for part in _expansions([item])[0])) for side in (gold, answer))
            return self._elided(listed, given, ordered=False) if forms.DOTS in listed + given else self._unordered(listed, given)
        if _brackets(gold) != _brackets(answer):
            return self._differ("brackets")
        return self._ordered(list(gold.items), list(answer.items))

    def _matrices(self, gold: tuple[str, list[list[str]]], answer: tuple[str, list[list[str]]]) -> bool:
        if gold[0] != answer[0] or [len(row) for row in gold[1]] != [len(row) for row in answer[1]]:
            return self._differ("shape")
        return all(self.same(a, b) for mine, theirs in zip(gold[1], answer[1], strict=True) for a, b in zip(mine, theirs, strict=True))

    def _quantities(self, gold: str, answer: str) -> bool:
        left, mine = quantity(gold)
        right, theirs = quantity(answer)
        if (mine is None) != (theirs is None):
            left, mine = (left, mine) if mine else quantity(gold, letters=True)
            right, theirs = (right, theirs) if theirs else quantity(answer, letters=True)
        (left, mine), (right, theirs) = _magnitude(left, mine), _magnitude(right, theirs)
        if mine is None and theirs is None or (mine and mine.generic) or (theirs and theirs.generic):
            return self._leaf(left, right)
        if mine and mine.is_only("percent") or theirs and theirs.is_only("percent"):
            return self._percent(left, mine, right, theirs)
        if mine and theirs:
            if mine.name or theirs.name:
                return (mine.name == theirs.name and self._leaf(left, right)) or self._differ("unit")
            if mine.dimension != theirs.dimension:
                return self._angles(left, mine, right, theirs)
            if mine.factor == theirs.factor:
                return self._leaf(left, right)
            return self._leaf(left, _scaled(right, theirs.factor / mine.factor)) or self._differ("unit")
        return self._leaf(left, right) or self._angles(left, mine, right, theirs)

    def _angles(self, left: str, mine: Unit | None, right: str, theirs: Unit | None) -> bool:
        """Degrees against radians: 90^\\circ is \\pi/2, written with \\pi or with the word."""
        def radian(unit: Unit | None, text: str) -> bool:
            return unit.is_only("angle-rad") if unit else "\\pi" in text

        if mine and mine.is_only("angle") and radian(theirs, right):
            return self._leaf(f"\\frac{{{left}\\pi}}{{180}}", right)
        if theirs and theirs.is_only("angle") and radian(mine, left):
            return self._leaf(left, f"\\frac{{{right}\\pi}}{{180}}")
        if mine and theirs and {mine.dimension, theirs.dimension} <= {(("angle", 1),), (("temperature-c", 1),)}:
            return self._leaf(left, right)
        return self._differ("unit" if mine and theirs else self.note)

    def _percent(self, left: str, mine: Unit | None, right: str, theirs: Unit | None) -> bool:
        """50% is 50% and 0.5; it is 50 too when the sign was left out, which a number below 1 cannot mean."""
        if mine and theirs:
            return (mine.dimension == theirs.dimension and self._leaf(left, right)) or self._differ("unit")
        percent, bare = (left, right) if mine else (right, left)
        number = parse_number(bare)
        if self._leaf(*(_scaled(left, Fraction(1, 100)) if mine else left, right if mine else _scaled(right, Fraction(1, 100)))):
            return True
        return number is not None and abs(number.value) >= 1 and self._leaf(percent, bare)

    def _leaf(self, gold: str, answer: str) -> bool:
        gold, answer = strip_parentheses(gold), strip_parentheses(answer)
        if not gold or not answer:
            return False
        if gold.replace(" ", "") == answer.replace(" ", ""):
            return True
        left, right = parse_number(gold), parse_number(answer)
        if left and right:
            return self._numbers(left, right)
        if forms.DOTS in gold or forms.DOTS in answer:
            return self._differ("elided sequence")
        if self._symbolic is None:
            raise Undecided
        self.used_symbolic = True
        return self._symbolic(gold, answer)

    def _numbers(self, gold: Exact, answer: Exact) -> bool:
        if gold.value == answer.value:
            return True
        difference = abs(gold.value - answer.value)
        if difference <= self._relative * abs(gold.value) or difference <= self._absolute:
            return True
        if gold.ulp and answer.ulp:
            return max(gold.digits, answer.digits) >= 15 and difference <= abs(gold.value) / 10**14
        return answer.rounds(gold.value) or gold.rounds(answer.value)


def _elements(text: str) -> list[str]:
    """The list a text is: cut at commas and words, and a set in braces opened."""
    parts = items(text)
    sides, signs = relation(parts[0])
    if len(parts) == 1:
        inside = group(sides[1] if signs == ["\\in"] and relations.is_symbol(sides[0]) else parts[0])
        if inside and inside.left == "{" and inside.items and not relations.is_builder(inside):
            return list(inside.items)
    elif signs == ["\\neq"] and not any(relation(part)[1] for part in parts[1:]):
        return [parts[0], *(f"{sides[0]} \\neq {part}" for part in parts[1:])]
    return parts


def _is_builder(text: str) -> bool:
    inside = group(text)
    return inside is not None and relations.is_builder(inside)


def _is_listed_set(text: str) -> bool:
    inside = group(text)
    return inside is not None and inside.left == "{" and not relations.is_builder(inside)


def _tuple(text: str) -> list[str] | None:
    inside = group(text)
    return list(inside.items) if inside and inside.left == "(" and inside.right == ")" and len(inside.items) > 1 else None


def _expansions(elements: list[str]) -> list[list[str]]:
    r"""The lists a list with \pm stands for: signs taken together, and, with several of them, each by itself."""
    if not any(_SIGN.search(element) for element in elements):
        return [list(dict.fromkeys(elements))]
    together: list[str] = []
    apart: list[str] = []
    for element in elements:
        signs = _SIGN.findall(element)[:4]
        if not signs:
            together.append(element)
            apart.append(element)
            continue
        pieces = _SIGN.split(element, maxsplit=len(signs))
        choices = [["+" if (sign == "\\mp") == flip else "-" for sign in signs] for flip in (False, True)]
        together += [_woven(pieces, chosen_signs) for chosen_signs in choices]
        apart += [_woven(pieces, ["+-"[number >> place & 1] for place in range(len(signs))]) for number in range(2 ** len(signs))]
    return [together] if len(apart) == len(together) else [together, apart]


def _woven(pieces: list[str], signs: list[str]) -> str:
    text = pieces[0]
    for sign, piece in zip(signs, pieces[1:], strict=True):
        plain = sign == "+" and re.search(r"(?:^|[=(,{])\s*$", text)
        text += ("" if plain else sign) + piece.lstrip()
    return text


def _exact_side(text: str) -> str:
    r"""22/7 \approx 3.14 is 22/7; x \approx 3.14 is x = 3.14."""
    sides, signs = relation(text)
    if "\\approx" not in signs:
        return text
    head = text[: text.index("\\approx")].strip()
    tail = sides[-1]
    if not head:
        return tail
    return f"{head} = {tail}" if relations.is_name(head) and "=" not in head else head


def _residue(text: str) -> tuple[str, str | None]:
    match = _MODULUS.search(text)
    body = text[: match.start()].strip() if match else text
    sides = relation(body)[0]
    return sides[-1], match[1] if match else None


def _rename_argument(gold: str, answer: str, value: str) -> str | None:
    """f(x)=… against f(n)=…: the answer's value in the gold's argument, None when the two are not that."""
    pattern = re.compile(r"([a-zA-Z])\(([a-zA-Z])\)")
    mine, theirs = pattern.fullmatch(gold.replace(" ", "")), pattern.fullmatch(answer.replace(" ", ""))
    if not mine or not theirs or mine[1] != theirs[1] or mine[2] == theirs[2]:
        return None
    return re.sub(rf"(?<![a-zA-Z\\]){theirs[2]}(?![a-zA-Z])", mine[2], value)


def _is_call_and_y(left: str, right: str) -> bool:
    """f(x) = … and y = … name the same function."""
    names = sorted((left.replace(" ", ""), right.replace(" ", "")), key=len)
    return names[0] == "y" and re.fullmatch(r"[a-zA-Z]\(x\)", names[1]) is not None


def _brackets(piece: Group) -> tuple[str, str]:
    left = "(" if piece.items and piece.items[0].replace(" ", "") == "-\\infty" else piece.left
    right = ")" if piece.items and piece.items[-1].replace(" ", "") in ("\\infty", "+\\infty") else piece.right
    return left, right


def _magnitude(text: str, unit: Unit | None) -> tuple[str, Unit | None]:
    """5 million is 5000000."""
    if unit is None or unit.name not in _MAGNITUDES:
        return text, unit
    return _scaled(text, Fraction(10 ** _MAGNITUDES[unit.name])), None


def _scaled(text: str, factor: Fraction) -> str:
    number = parse_number(text)
    if number is None:
        return f"\\frac{{{factor.numerator} \\cdot ({text})}}{{{factor.denominator}}}"
    value = number.value * factor
    return str(value.numerator) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
