r"""Intervals and the sets that inequalities, memberships and set-builders describe, as unions of intervals."""

import re
from dataclasses import dataclass

from tepo.problems.grader.kinds.collections.pairing import pair_off
from tepo.problems.grader.kinds.collections.tuples import same_groups
from tepo.problems.grader.kinds.names import is_symbol, is_variable
from tepo.problems.grader.kinds.numbers.number import parse_number
from tepo.problems.grader.kinds.protocol import Comparison
from tepo.problems.grader.text.split import Group, group, relation, union


def is_set_builder(text: str) -> bool:
    inside = group(text)
    return inside is not None and is_builder(inside)


_ABSOLUTE = re.compile(r"\| ?([a-zA-Z]) ?\|")
_PUNCTURED = re.compile(  # \mathbb{R} \setminus \{-1, 1\}
    r"(?:\\mathbb\{R\}|\(-\\infty ?, ?\+?\\infty ?\))\s*(?:\\setminus|\\backslash|-)\s*(\\\{.+\\\})"
)
_BUILDER = re.compile(r"\s*(\S+?)(?:\s*\\in\s*\\mathbb\{R\})?\s*(?:\\mid|:|\|)\s*(.+)", re.DOTALL)
ORDER = {"<": ("<", False), "\\leq": ("<", True), ">": (">", False), "\\geq": (">", True)}
_SYMMETRIC = ("=", "\\neq", "\\equiv", "\\approx", "\\parallel", "\\perp", "\\cong", "\\sim")
FLIPPED = {"<": ">", ">": "<", "\\leq": "\\geq", "\\geq": "\\leq"} | {sign: sign for sign in _SYMMETRIC}
"""Signs read from the right; membership, divisibility and inclusion have no such reading here."""


@dataclass(frozen=True, slots=True)
class SolutionSet:
    """`pieces`: intervals and finite sets whose union it is; `variable` is None when the answer names none."""

    variable: str | None
    pieces: tuple[Group, ...]


def interval_of_chain(text: str) -> SolutionSet | None:
    r"""x<5, 1 \leq x < 2, 5>x, x \neq 3 as intervals in their one variable; None for other relations."""
    sides, signs = relation(text)
    if signs == ["\\neq"] and is_symbol(sides[0]) and sides[1]:
        return SolutionSet(sides[0], (_interval("-\\infty", sides[1]), _interval(sides[1], "\\infty")))
    if not signs or any(sign not in ORDER for sign in signs) or not all(sides):
        return None
    if len({ORDER[sign][0] for sign in signs}) != 1 or len(signs) > 2:
        return None
    if ORDER[signs[0]][0] == ">":
        sides, signs = sides[::-1], [FLIPPED[sign] for sign in reversed(signs)]
    first, last = ORDER[signs[0]][1], ORDER[signs[-1]][1]
    low, high = sides[0], sides[-1]
    if len(signs) == 2:
        if not is_variable(sides[1]) or sides[1] in (low, high):
            return None
        return SolutionSet(sides[1], (_interval(low, high, first, last),))
    if inside := _ABSOLUTE.fullmatch(low):  # |x| < a
        return SolutionSet(inside[1], (_interval(f"-({high})", high, first, first),))
    if inside := _ABSOLUTE.fullmatch(high):  # a < |x|
        outside = _interval("-\\infty", f"-({low})", False, first), _interval(low, "\\infty", first)
        return SolutionSet(inside[1], outside)
    if is_variable(low):
        return SolutionSet(low, (_interval("-\\infty", high, False, first),))
    return SolutionSet(high, (_interval(low, "\\infty", first),)) if is_variable(high) else None


def _interval(low: str, high: str, from_low: bool = False, to_high: bool = False) -> Group:
    """The ends belong to it where the flags say so."""
    return Group("[" if from_low else "(", (low, high), "]" if to_high else ")")


def solution_set(texts: list[str]) -> SolutionSet | None:
    """The set a list of inequalities, one membership, a set-builder or a union of intervals describes; the pieces of a
    list are united, except that two that overlap into an interval (x>2 and x<5) are intersected."""
    read = [_one(text) for text in texts]
    parts = [part for part in read if part]
    if not read or len(parts) < len(read):
        return None
    names = {part.variable for part in parts}
    if len(names) != 1:
        return None
    pieces = tuple(piece for part in parts for piece in part.pieces)
    return SolutionSet(parts[0].variable, _intersected(pieces) if len(parts) == 2 else pieces)


def listed_set(texts: list[str]) -> SolutionSet | None:
    r"""The same for a list that may take points out of an interval or of the line: x>0, x \neq 1."""
    conditions = [text for text in texts if "\\neq" not in text]
    if len(conditions) == len(texts):
        return solution_set(texts)
    removed = [relation(text) for text in texts if "\\neq" in text]
    if not conditions:
        names, points = {sides[0] for sides, _ in removed}, [sides[1] for sides, signs in removed if signs == ["\\neq"]]
        if not 1 < len(texts) == len(points) or len(names) > 1 or not is_symbol(min(names)):
            return None
        line = _line_without(points)
        return SolutionSet(min(names), line) if line else None
    full = solution_set(conditions)
    if (
        not full
        or not full.variable
        or any((sides[0], signs) != (full.variable, ["\\neq"]) for sides, signs in removed)
    ):
        return None
    pieces = list(full.pieces)
    for sides, _ in removed:
        pieces = [part for piece in pieces for part in _cut_at(piece, sides[1])]
    return SolutionSet(full.variable, tuple(pieces))


def _cut_at(piece: Group, point: str) -> list[Group]:
    """An interval without a point; all of it where the point is not inside."""
    low, high, cut = (parse_number(text) for text in (piece.items[0], piece.items[-1], point))
    below = piece.items[0] == "-\\infty" or (low and cut and low.value < cut.value)
    above = piece.items[-1] in ("\\infty", "+\\infty") or (high and cut and cut.value < high.value)
    if piece.left == "{" or cut is None or not below or not above:
        return [piece]
    return [Group(piece.left, (piece.items[0], point), ")"), Group("(", (point, piece.items[-1]), piece.right)]


def _one(text: str) -> SolutionSet | None:
    sides, signs = relation(text)
    if signs == ["\\in"] and is_symbol(sides[0]):
        inner = _one(sides[1])
        return SolutionSet(sides[0], inner.pieces) if inner else None
    if signs:
        return interval_of_chain(text)
    pieces = [group(piece) for piece in union(text)]
    if any(piece is None for piece in pieces):
        match = _PUNCTURED.fullmatch(text)
        removed = group(match[1]) if match else None
        line = _line_without(list(removed.items)) if removed and removed.left == "{" else None
        return SolutionSet(None, line) if line else None
    groups = [piece for piece in pieces if piece]
    if len(groups) == 1 and groups[0].left == "{":  # perhaps {x | x>2} or {x : x>2}
        match = _BUILDER.fullmatch(",".join(groups[0].items))
        if match and is_symbol(match[1]):
            return interval_of_chain(match[2].strip())
        return SolutionSet(None, (groups[0],)) if not match and not is_builder(groups[0]) else None
    if any(piece.left != "{" and len(piece.items) != 2 for piece in groups):
        return None
    return SolutionSet(None, tuple(groups))


def is_builder(piece: Group) -> bool:
    r"""Is this a set given by a condition, {x \mid x>2}?"""
    return piece.left == "{" and any(re.search(r"\\mid|:|\|", item) for item in piece.items[:1])


def _line_without(points: list[str]) -> tuple[Group, ...] | None:
    """The real line without these points, as open intervals;
    None where several of them are not numbers, which have an order."""
    signed = [
        part
        for point in points
        for part in ((point[3:].strip(), f"-{point[3:].strip()}") if point.startswith("\\pm") else (point,))
    ]
    if len(signed) == 1:
        return _interval("-\\infty", signed[0]), _interval(signed[0], "\\infty")
    pieces = [_interval("-\\infty", "\\infty")]
    for point in signed:
        pieces = [part for piece in pieces for part in _cut_at(piece, point)]
    return tuple(pieces) if len(pieces) == len(signed) + 1 else None


def _intersected(pieces: tuple[Group, ...]) -> tuple[Group, ...]:
    below = [piece for piece in pieces if piece.items[0] == "-\\infty"]
    above = [piece for piece in pieces if piece.items[-1] == "\\infty"]
    if len(pieces) == 2 and len(below) == 1 and len(above) == 1 and below[0] is not above[0]:
        low, high = parse_number(above[0].items[0]), parse_number(below[0].items[1])
        if low and high and low.value < high.value:
            return (Group(above[0].left, (above[0].items[0], below[0].items[1]), below[0].right),)
    return pieces


def same_sets(mine: SolutionSet, theirs: SolutionSet, compare: Comparison) -> bool:
    """The same intervals and finite sets, in any order, of the same variable where both name one."""
    if mine.variable and theirs.variable and mine.variable != theirs.variable:
        return compare.differ("variable")
    return pair_off(mine.pieces, theirs.pieces, lambda left, right: same_groups(left, right, compare))
