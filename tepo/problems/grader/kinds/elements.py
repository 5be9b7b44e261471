r"""What an answer is made of: the elements of a list or set, the signs of \pm,
the leaves that must be read as mathematics."""

import re
from itertools import pairwise

from tepo.problems.grader.kinds import forms, interval
from tepo.problems.grader.kinds.number import parse_number
from tepo.problems.grader.kinds.quantity import quantity
from tepo.problems.grader.kinds.words import choice, words
from tepo.problems.grader.text.layout import piecewise
from tepo.problems.grader.text.split import group, items, matrix, relation, strip_parentheses, union

SIGN = re.compile(r"\\pm(?![a-zA-Z])|\\mp(?![a-zA-Z])|\+ ?/ ?-")
_MAX_SIGNS = 4
_POINT = re.compile(r"^[A-Z]'? ?(?=\()")
_REAL = re.compile(r"[a-zA-Z] ?\\in ?\\mathbb\{R\}")
_CONDITION = re.compile(r"\\\{ ?[a-z](?: ?\\in ?\\mathbb\{R\})? ?\\mid (.+[<>].+)\\\}")
_ASSIGNMENT = re.compile(r"([a-zA-Z]) ?=")


def elements(text: str) -> list[str]:
    r"""The list a text is: cut at commas and words, a set in braces opened,
    `x \neq 2, 3` with its relation repeated."""
    parts = items(text)
    parts = [part for part in parts if not _REAL.fullmatch(part)] or parts
    sides, signs = relation(parts[0])
    if len(parts) == 1:
        pieces = [group(piece) for piece in union(parts[0])]
        if len(pieces) > 1 and all(piece and piece.left == "{" and not interval.is_builder(piece) for piece in pieces):
            return list(dict.fromkeys(item for piece in pieces if piece for item in piece.items))
        if (condition := _CONDITION.fullmatch(parts[0])) and len(conditions := items(condition[1])) > 1:
            return conditions
        inside = group(sides[1] if signs in (["\\in"], ["="]) and _is_unknown(sides[0]) else parts[0])
        if inside and inside.left == "{" and inside.items and not interval.is_builder(inside):
            return list(inside.items)
    elif signs == ["\\neq"] and not any(relation(part)[1] for part in parts[1:]):
        return [parts[0], *(f"{sides[0]} \\neq {part}" for part in parts[1:])]
    return parts


def _is_unknown(text: str) -> bool:
    """x or (x, y), what is asked for."""
    return interval.is_symbol(text) or all(interval.is_symbol(name) for name in tuple_items(text) or [""])


def tuple_items(text: str) -> list[str] | None:
    """The items of (a, b, …) or of a named point A(a, b), None for anything else."""
    inside = group(unnamed_point(text))
    return list(inside.items) if inside and inside.left + inside.right == "()" and len(inside.items) > 1 else None


def unnamed_point(text: str) -> str:
    """A(1, 2) as (1, 2)."""
    return _POINT.sub("", text)


def as_tuple(text: str) -> str:
    """x = y = 4 as (4, 4), where the letters follow each other; other text as it is."""
    sides, signs = relation(text)
    names = sides[:-1]
    neighbours = (
        len(names) > 1
        and set(signs) == {"="}
        and all(len(name) == 1 for name in names)
        and all(ord(b) - ord(a) == 1 for a, b in pairwise(names))
    )
    return (
        f"({', '.join([sides[-1]] * len(names))})"
        if neighbours and len(sides[-1]) and not interval.is_symbol(sides[-1])
        else text
    )


def by_letter(parts: list[str]) -> list[str]:
    """Assignments to neighbouring letters in the order of the alphabet (y=1, x=2 as x=2, y=1),
    as a tuple would have them."""
    names = [match[1] if (match := _ASSIGNMENT.match(part)) else "" for part in parts]
    ordered = sorted(names)
    neighbours = all(names) and all(ord(right) - ord(left) == 1 for left, right in pairwise(ordered))
    return [part for _, part in sorted(zip(names, parts, strict=True))] if neighbours else parts


def assignments(text: str) -> list[str] | None:
    """(m, n) = (3, 5) as m = 3, n = 5; None for anything else."""
    sides, signs = relation(text)
    names, values = (tuple_items(side) or [] for side in sides) if signs == ["="] else ([], [])
    if not names or len(names) != len(values) or not all(interval.is_symbol(name) for name in names):
        return None
    return [f"{name} = {value}" for name, value in zip(names, values, strict=True)]


def is_set_builder(text: str) -> bool:
    inside = group(text)
    return inside is not None and interval.is_builder(inside)


def is_listed_set(text: str) -> bool:
    """Is this a set of several elements (or none), written in braces? {x=1, y=2} is a system."""
    inside = group(text)
    if inside is None or inside.left != "{" or len(inside.items) == 1 or interval.is_builder(inside):
        return False
    return not inside.items or not all(_ASSIGNMENT.match(item) for item in inside.items)


def expansions(parts: list[str]) -> list[list[str]]:
    r"""The lists a list with \pm stands for: signs taken together, and, with several of them, each by itself."""
    if not any(SIGN.search(part) for part in parts):
        return [list(dict.fromkeys(parts))]
    together: list[str] = []
    apart: list[str] = []
    for part in parts:
        signs = SIGN.findall(part)[:_MAX_SIGNS]
        if not signs:
            together.append(part)
            apart.append(part)
            continue
        pieces = SIGN.split(part, maxsplit=len(signs))
        together += [
            _woven(pieces, ["+" if (sign == "\\mp") == flip else "-" for sign in signs]) for flip in (False, True)
        ]
        apart += [
            _woven(pieces, ["+-"[number >> place & 1] for place in range(len(signs))])
            for number in range(2 ** len(signs))
        ]
    return [together] if len(apart) == len(together) else [together, apart]


def _woven(pieces: list[str], signs: list[str]) -> str:
    text = pieces[0]
    for sign, piece in zip(signs, pieces[1:], strict=True):
        leading = sign == "+" and re.search(r"(?:^|[=(,{])\s*$", text)
        text += ("" if leading else sign) + piece.lstrip()
    return text


def leaves(text: str) -> list[str]:
    """The parts of an answer that only sympy could read; words, plain numbers, clock times and the like are none."""
    if (
        choice(text)
        or words(text) is not None
        or forms.based(text)
        or forms.time(text)
        or parse_number(text)
        or forms.DOTS in text
    ):
        return []
    parts = [part for expanded in expansions(elements(text))[:1] for part in expanded]
    if parts == [text]:
        parts = _inner(text)
    if parts == [text]:
        number = strip_parentheses(quantity(text)[0])
        return [] if parse_number(number) else [number]
    return [leaf for part in parts if part for leaf in leaves(part)]


def _inner(text: str) -> list[str]:
    """One level of structure opened: a matrix, a ratio, a union, a relation, a bracketed group;
    the text itself if none."""
    rows, cases = matrix(text), piecewise(text)
    if cases:
        return [value for value, _ in cases]
    if rows:
        return [entry for row in rows[1] for entry in row]
    terms, pieces, sides = forms.ratio(text), union(text), relation(text)[0]
    if terms or len(pieces) > 1 or len(sides) > 1:
        return terms or (pieces if len(pieces) > 1 else sides)
    inside = group(text)
    return list(inside.items) if inside and (len(inside.items) > 1 or inside.left == "{") else [text]
