r"""Several values in one answer: items in order and in any order, elisions (1, 3, \ldots, 99), tuples, sets, points,
\pm, matrices, definitions by cases, and intervals with the conditions that describe them."""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, islice, pairwise, product, repeat, takewhile
from operator import mul
from typing import NamedTuple, Protocol, TypeVar

from tepo.problems.grader.brackets import Bracketed, group, relation, strip_parentheses, union
from tepo.problems.grader.numbers import parse_number
from tepo.problems.grader.spelling import ROW

SYMBOL = re.compile(r"(?:[a-zA-Z]|\\(?!infty|pi(?![a-z]))[a-zA-Z]+)(?:_(?:\{[^{}]*\}|\w))?'*")
_VALUE_OF = re.compile(r"[a-zA-Z] ?\( ?[a-zA-Z] ?\)")


def is_symbol(text: str) -> bool:
    return SYMBOL.fullmatch(text) is not None


def is_variable(text: str) -> bool:
    """x, or a value f(x)."""
    return is_symbol(text) or _VALUE_OF.fullmatch(text) is not None


class Comparison(Protocol):
    """The comparer, as kinds see it (`comparer.Comparer`). All texts are canonical."""

    def same(self, gold: str, answer: str) -> bool: ...
    def value(self, gold: str, answer: str) -> bool: ...
    def expressions(self, gold: str, answer: str) -> bool: ...
    def differ(self, note: str) -> bool: ...


DOTS = "\\ldots"
_MOST_TERMS = 200
Progression = tuple[str, Fraction, Fraction, Fraction | None]
"""Kind, first, step and last: first, first+step (or first*step) … up to last; None when it goes on."""


def _progression(items: list[str]) -> Progression | None:
    """The arithmetic or geometric progression a list with one elision means, if its written terms fit one."""
    numbers = [parse_number(item) for item in items if item != DOTS]
    place = items.index(DOTS) if items.count(DOTS) == 1 else 0
    if place < 2 or any(number is None for number in numbers):
        return None
    values = [number.value for number in numbers if number]
    head, tail = values[:place], values[place:]
    step, last = head[1] - head[0], tail[-1] if tail else None
    runs = all(b - a == step for part in (head, tail) for a, b in pairwise(part))
    counts = [(value - head[-1]) / step for value in tail] if step else []
    if step and runs and all(count.denominator == 1 and count > 0 for count in counts):
        return "sum", head[0], step, last
    if place >= 3 and all(head):
        factor = head[1] / head[0]
        if abs(factor) not in (0, 1) and all(b == a * factor for a, b in pairwise(head)):
            reached = islice(accumulate(repeat(factor, _MOST_TERMS), mul, initial=head[0]), 1, None)
            within = takewhile(lambda value: abs(factor) < 1 or abs(value) <= abs(tail[-1]), reached)
            if not tail or tail[-1] in within:
                return "product", head[0], factor, last
    return None


def _terms(kind: str, first: Fraction, step: Fraction, last: Fraction | None) -> list[str]:
    """All terms of a progression, none when there are too many."""
    values = [first]
    while last not in (None, values[-1]) and len(values) <= _MOST_TERMS:
        values.append(values[-1] + step if kind == "sum" else values[-1] * step)
    return list(map(str, values)) if values[-1] == last and len(values) <= _MOST_TERMS else []


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
    mine, theirs = _progression(golds), _progression(answers)
    if mine and theirs:
        return mine == theirs or compare.differ("elided sequence")
    if golds.count(DOTS) == answers.count(DOTS):
        same = len(golds) == len(answers) and all(
            a == b or (DOTS not in (a, b) and compare.same(a, b)) for a, b in zip(golds, answers, strict=True)
        )
        return same or compare.differ("elided sequence")
    written = _terms(*(mine or theirs or ("sum", Fraction(0), Fraction(0), None)))
    other = answers if mine else golds
    if not written or DOTS in other:
        return compare.differ("elided sequence")
    same_items = same_in_order if ordered else same_in_any_order
    return same_items(written, answers, compare) if mine else same_items(golds, written, compare)


def pair_off(left: Sequence[Item], right: Sequence[Item], same: Callable[[Item, Item], bool]) -> bool:
    """Do the items pair off, in any order? Identical ones are paired first, so that few pairs need comparing."""
    candidates, rest = list(left), []
    for item in right:
        if item in candidates:
            candidates.remove(item)
        else:
            rest.append(item)
    for item in rest if len(left) == len(right) else ():
        match = next((index for index, candidate in enumerate(candidates) if same(candidate, item)), None)
        if match is None:
            return False
        del candidates[match]
    return len(left) == len(right)


SIGN = re.compile(r"\\pm(?![a-zA-Z])|\\mp(?![a-zA-Z])|\+ ?/ ?-")
_MAX_SIGNS = 4


def expansions(parts: list[str]) -> list[list[str]]:
    r"""The lists a list with \pm stands for: signs taken together, and, with several of them, each by itself."""
    if not any(SIGN.search(part) for part in parts):
        return [list(dict.fromkeys(parts))]

    def woven(signs: Sequence[str]) -> str:
        text = pieces[0]
        for sign, piece in zip(signs, pieces[1:], strict=True):
            leading = sign == "+" and re.search(r"(?:^|[=(,{])\s*$", text)
            text += ("" if leading else sign) + piece.lstrip()
        return text

    together: list[str] = []
    apart: list[str] = []
    for part in parts:
        signs = SIGN.findall(part)[:_MAX_SIGNS]
        pieces = SIGN.split(part, maxsplit=len(signs))
        for plus, minus in ("+-", "-+") if signs else ("+-",):
            together.append(woven([minus if sign == "\\mp" else plus for sign in signs]))
        apart += [woven(chosen[::-1]) for chosen in product("+-", repeat=len(signs))]
    return [together] if len(apart) == len(together) else [together, apart]


_POINT = re.compile(r"^[A-Z]'? ?(?=\()")
ASSIGNMENT = re.compile(r"([a-zA-Z]) ?=")


def tuple_items(text: str) -> list[str] | None:
    """The items of (a, b, …) or of a named point A(a, b), None for anything else."""
    inside = group(unnamed_point(text))
    return list(inside.items) if inside and inside.left + inside.right == "()" and len(inside.items) > 1 else None


def unnamed_point(text: str) -> str:
    """A(1, 2) as (1, 2)."""
    return _POINT.sub("", text)


def _neighbours(names: list[str]) -> bool:
    """Are these letters that follow each other in the alphabet?"""
    return all(map(len, names)) and all(len(a + b) == 2 and ord(b) - ord(a) == 1 for a, b in pairwise(names))


def as_tuple(text: str) -> str:
    """x = y = 4 as (4, 4), where the letters follow each other; other text as it is."""
    (*names, value), signs = relation(text)
    valued = len(names) > 1 and set(signs) == {"="} and _neighbours(names) and value and not is_symbol(value)
    return f"({', '.join([value] * len(names))})" if valued else text


def by_letter(parts: list[str]) -> list[str]:
    """Assignments to neighbouring letters in the order of the alphabet (y=1, x=2 as x=2, y=1),
    as a tuple would have them."""
    named = sorted((match[1] if (match := ASSIGNMENT.match(part)) else "", part) for part in parts)
    return [part for _, part in named] if _neighbours([name for name, _ in named]) else parts


def assignments(text: str) -> list[str] | None:
    """(m, n) = (3, 5) as m = 3, n = 5; None for anything else."""
    sides, signs = relation(text)
    names, values = (tuple_items(side) or [] for side in sides) if signs == ["="] else ([], [])
    if not names or len(names) != len(values) or not all(map(is_symbol, names)):
        return None
    return [f"{name} = {value}" for name, value in zip(names, values, strict=True)]


def same_groups(gold: Bracketed, answer: Bracketed, compare: Comparison) -> bool:
    """Sets in any order; tuples and intervals in order, with the same brackets (round beside infinity either way)."""
    if (gold.left == "{") != (answer.left == "{"):
        return len(gold.items) == len(answer.items) == 1 and compare.same(gold.items[0], answer.items[0])
    if gold.left == "{":
        golds, answers = (
            list(dict.fromkeys(part for item in side.items for part in expansions([item])[0]))
            for side in (gold, answer)
        )
        if DOTS in golds + answers:
            return same_elided(golds, answers, compare, ordered=False)
        return same_in_any_order(golds, answers, compare)
    if _brackets(gold) != _brackets(answer):
        return compare.differ("brackets")
    return same_in_order(list(gold.items), list(answer.items), compare)


def _brackets(piece: Bracketed) -> tuple[str, str]:
    left = "(" if piece.items and piece.items[0].replace(" ", "") == "-\\infty" else piece.left
    right = ")" if piece.items and piece.items[-1].replace(" ", "") in ("\\infty", "+\\infty") else piece.right
    return left, right


_MATRIX = re.compile(r"\\begin\{([a-zA-Z]*)(?:matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1(?:matrix|array)\}", re.DOTALL)


def _matrix(text: str) -> tuple[bool, list[list[str]]] | None:
    """(is it a determinant, rows of entries) of a matrix environment or of lists in a list."""
    inner = strip_parentheses(text)
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1].strip()
    match = _MATRIX.fullmatch(inner)
    if not match or "\\begin" in match[2]:  # [[1, 2], [3, 4]]
        outer = group(text)
        lists = [group(item) for item in outer.items] if outer and outer.left + outer.right == "[]" else []
        row_items = [list(row.items) for row in lists if row and row.left + row.right == "[]"]
        return (False, row_items) if len(lists) == len(row_items) > 1 else None
    rows = [[entry.strip() for entry in row.split("&")] for row in ROW.split(match[2].strip()) if row.strip()]
    return match[1] in ("v", "V"), rows


def same_matrices(gold: str, answer: str, compare: Comparison) -> bool | None:
    """Entry by entry. None unless both are matrices."""
    mine, theirs = _matrix(gold), _matrix(answer)
    if not mine or not theirs:
        return None
    if mine[0] != theirs[0] or [len(row) for row in mine[1]] != [len(row) for row in theirs[1]]:
        return compare.differ("shape")
    return all(all(map(compare.same, left, right)) for left, right in zip(mine[1], theirs[1], strict=True))


_CASES = re.compile(r"\\begin\{cases\}(.*)\\end\{cases\}", re.DOTALL)
_IF = re.compile(r"^(?:\\text\{,? ?(?:if|for|when|whenever|where) ?([^{}]*)\}|\\text\{,? ?(?:otherwise|else)\})")


def _cases(text: str) -> list[tuple[str, str]]:
    r"""(value, condition) pairs of a definition by cases, n \text{is even} as n \text{even}; the condition of
    `\text{otherwise}` is empty."""
    pairs = []
    match = _CASES.fullmatch(text) if text.startswith("\\begin{cases}") else None
    for value, _, condition in (row.partition("&") for row in (ROW.split(match[1]) if match else ())):
        condition = _IF.sub(lambda match: f"\\text{{{match[1]}}}" if match[1] else "", condition.strip(), count=1)
        condition = re.sub(r"\\text\{(?:is|are) ?", r"\\text{", condition).replace("\\text{}", "").strip()
        pairs.append((value.strip().rstrip(", "), "" if condition in ("otherwise", "else") else condition))
    return pairs


def same_cases(gold: str, answer: str, compare: Comparison) -> bool | None:
    """The same values under the same conditions, in any order; "otherwise" is the one condition that the other side
    writes out. None unless both are definitions by cases."""
    golds, answers = _cases(gold), _cases(answer)
    if not golds or not answers:
        return None
    free = all(any(not condition for _, condition in side) for side in (golds, answers))

    def same_case(mine: tuple[str, str], theirs: tuple[str, str]) -> bool:
        otherwise = mine[1] == theirs[1] if free else not mine[1] or not theirs[1]
        return compare.same(mine[0], theirs[0]) and (otherwise or compare.same(mine[1], theirs[1]))

    return pair_off(golds, answers, same_case) or compare.differ("cases")


_ABSOLUTE = re.compile(r"\| ?([a-zA-Z]) ?\|")
_PUNCTURED = re.compile(  # \mathbb{R} \setminus \{-1, 1\}
    r"(?:\\mathbb\{R\}|\(-\\infty ?, ?\+?\\infty ?\))\s*(?:\\setminus|\\backslash|-)\s*(\\\{.+\\\})"
)
_BUILDER = re.compile(r"\s*(\S+?)(?:\s*\\in\s*\\mathbb\{R\})?\s*(?:\\mid|:|\|)\s*(.+)", re.DOTALL)
ORDER = {"<": ("<", False), "\\leq": ("<", True), ">": (">", False), "\\geq": (">", True)}
_SYMMETRIC = ("=", "\\neq", "\\equiv", "\\approx", "\\parallel", "\\perp", "\\cong", "\\sim")
FLIPPED = {"<": ">", ">": "<", "\\leq": "\\geq", "\\geq": "\\leq"} | {sign: sign for sign in _SYMMETRIC}
"""Signs read from the right; membership, divisibility and inclusion have no such reading here."""


class SolutionSet(NamedTuple):
    variable: str | None  # None when the answer names none
    pieces: tuple[Bracketed, ...]  # intervals and finite sets whose union it is


def interval_of_chain(text: str) -> SolutionSet | None:
    r"""x<5, 1 \leq x < 2, 5>x, x \neq 3 as intervals in their one variable; None for other relations."""
    sides, signs = relation(text)
    if signs == ["\\neq"] and is_symbol(sides[0]) and sides[1]:
        return SolutionSet(sides[0], (_interval("-\\infty", sides[1]), _interval(sides[1], "\\infty")))
    directions = {ORDER[sign][0] if sign in ORDER else sign for sign in signs}
    if directions not in ({"<"}, {">"}) or len(signs) > 2 or not all(sides):
        return None
    if directions == {">"}:
        sides, signs = sides[::-1], [FLIPPED[sign] for sign in reversed(signs)]
    first, last = ORDER[signs[0]][1], ORDER[signs[-1]][1]
    low, middle, high = sides[0], sides[1], sides[-1]
    if len(signs) == 2:
        is_unknown = is_variable(middle) and middle not in (low, high)
        return SolutionSet(middle, (_interval(low, high, first, last),)) if is_unknown else None
    if inside := _ABSOLUTE.fullmatch(low):  # |x| < a
        return SolutionSet(inside[1], (_interval(f"-({high})", high, first, first),))
    if inside := _ABSOLUTE.fullmatch(high):  # a < |x|
        outside = _interval("-\\infty", f"-({low})", False, first), _interval(low, "\\infty", first)
        return SolutionSet(inside[1], outside)
    if is_variable(low):
        return SolutionSet(low, (_interval("-\\infty", high, False, first),))
    return SolutionSet(high, (_interval(low, "\\infty", first),)) if is_variable(high) else None


def _interval(low: str, high: str, from_low: bool = False, to_high: bool = False) -> Bracketed:
    """The ends belong to it where the flags say so."""
    return Bracketed("[" if from_low else "(", (low, high), "]" if to_high else ")")


def solution_set(texts: list[str]) -> SolutionSet | None:
    r"""The set a list of inequalities, one membership, a set-builder or a union of intervals describes; the pieces of a
    list are united, except that two that overlap into an interval (x>2 and x<5) are intersected. Points may be taken
    out of it, or, of a list, out of the line: x>0, x \neq 1."""
    removed = [relation(text) for text in texts if "\\neq" in text] if len(texts) > 1 else []
    parts = [_one(text) for text in texts if not removed or "\\neq" not in text]
    names = {part.variable for part in parts if part} if parts else {sides[0] for sides, _ in removed}
    if None in parts or len(names) != 1 or any(signs != ["\\neq"] for _, signs in removed):
        return None
    (name,), points = names, [sides[1] for sides, _ in removed]
    if not parts:
        line = _line_without(points) if name and is_symbol(name) else None
        return SolutionSet(name, line) if line else None
    pieces = [piece for part in parts if part for piece in part.pieces]
    if len(parts) == len(pieces) == 2:
        below = [piece for piece in pieces if piece.items[0] == "-\\infty"]
        above = [piece for piece in pieces if piece.items[-1] == "\\infty"]
        if len(below) == len(above) == 1 and below[0] is not above[0]:
            low, high = parse_number(above[0].items[0]), parse_number(below[0].items[1])
            if low and high and low.value < high.value:
                pieces = [Bracketed(above[0].left, (above[0].items[0], below[0].items[1]), below[0].right)]
    if any(sides[0] != name for sides, _ in removed):
        return None
    return SolutionSet(name, tuple(_without(pieces, points)))


def _without(pieces: list[Bracketed], points: list[str]) -> list[Bracketed]:
    """Intervals without points; all of one where no point is inside."""
    for point in points:
        cut, parts = parse_number(point), []
        for piece in pieces:
            first, last = piece.items[0], piece.items[-1]
            low, high = parse_number(first), parse_number(last)
            below = first == "-\\infty" or (low and cut and low.value < cut.value)
            above = last in ("\\infty", "+\\infty") or (high and cut and cut.value < high.value)
            if piece.left == "{" or cut is None or not below or not above:
                parts.append(piece)
            else:
                parts += [Bracketed(piece.left, (first, point), ")"), Bracketed("(", (point, last), piece.right)]
        pieces = parts
    return pieces


def _one(text: str) -> SolutionSet | None:
    sides, signs = relation(text)
    if signs == ["\\in"] and is_symbol(sides[0]):
        inner = _one(sides[1])
        return SolutionSet(sides[0], inner.pieces) if inner else None
    if signs:
        return interval_of_chain(text)
    pieces = [piece for piece in map(group, union(text)) if piece]
    if len(pieces) < len(union(text)):
        match = _PUNCTURED.fullmatch(text)
        removed = group(match[1]) if match else None
        line = _line_without(list(removed.items)) if removed and removed.left == "{" else None
        return SolutionSet(None, line) if line else None
    if len(pieces) == 1 and pieces[0].left == "{":  # perhaps {x | x>2} or {x : x>2}
        match = _BUILDER.fullmatch(",".join(pieces[0].items))
        if match and is_symbol(match[1]):
            return interval_of_chain(match[2].strip())
        return SolutionSet(None, tuple(pieces)) if not match and not is_builder(pieces[0]) else None
    paired = all(piece.left == "{" or len(piece.items) == 2 for piece in pieces)
    return SolutionSet(None, tuple(pieces)) if paired else None


def is_builder(piece: Bracketed) -> bool:
    r"""Is this a set given by a condition, {x \mid x>2}?"""
    return piece.left == "{" and any(re.search(r"\\mid|:|\|", item) for item in piece.items[:1])


def _line_without(points: list[str]) -> tuple[Bracketed, ...] | None:
    """The real line without these points, as open intervals;
    None where several of them are not numbers, which have an order."""
    signed: list[str] = []
    for point in points:
        bare = point.removeprefix("\\pm").strip()
        signed += [bare, f"-{bare}"] if point.startswith("\\pm") else [point]
    if len(signed) == 1:
        return _interval("-\\infty", signed[0]), _interval(signed[0], "\\infty")
    pieces = tuple(_without([_interval("-\\infty", "\\infty")], signed))
    return pieces if len(pieces) == len(signed) + 1 else None


def same_sets(mine: SolutionSet, theirs: SolutionSet, compare: Comparison) -> bool:
    """The same intervals and finite sets, in any order, of the same variable where both name one."""
    if mine.variable and theirs.variable and mine.variable != theirs.variable:
        return compare.differ("variable")
    return pair_off(mine.pieces, theirs.pieces, lambda left, right: same_groups(left, right, compare))


def same_solutions(gold: str, answer: str, compare: Comparison) -> bool | None:
    """None where one is no set of solutions."""
    mine, theirs = solution_set([gold]), solution_set([answer])
    return same_sets(mine, theirs, compare) if mine and theirs else None
