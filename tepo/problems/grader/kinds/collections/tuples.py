r"""Tuples, points and other groups in brackets: (1, 2), A(1, 2), {1, 2}, [0, 1); and lists with \pm and \mp."""

import re
from itertools import pairwise

from tepo.problems.grader.kinds.collections.pairing import DOTS, same_elided, same_in_any_order, same_in_order
from tepo.problems.grader.kinds.names import is_symbol
from tepo.problems.grader.kinds.protocol import Comparison
from tepo.problems.grader.text.split import Group, group, relation

SIGN = re.compile(r"\\pm(?![a-zA-Z])|\\mp(?![a-zA-Z])|\+ ?/ ?-")
_MAX_SIGNS = 4


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
        for flip in (False, True):
            together.append(_woven(pieces, ["+" if (sign == "\\mp") == flip else "-" for sign in signs]))
        for number in range(2 ** len(signs)):
            apart.append(_woven(pieces, ["+-"[number >> index & 1] for index in range(len(signs))]))
    return [together] if len(apart) == len(together) else [together, apart]


def _woven(pieces: list[str], signs: list[str]) -> str:
    text = pieces[0]
    for sign, piece in zip(signs, pieces[1:], strict=True):
        leading = sign == "+" and re.search(r"(?:^|[=(,{])\s*$", text)
        text += ("" if leading else sign) + piece.lstrip()
    return text


_POINT = re.compile(r"^[A-Z]'? ?(?=\()")
ASSIGNMENT = re.compile(r"([a-zA-Z]) ?=")


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
    letters = len(names) > 1 and set(signs) == {"="} and all(len(name) == 1 for name in names)
    neighbours = letters and all(ord(b) - ord(a) == 1 for a, b in pairwise(names))
    valued = neighbours and sides[-1] and not is_symbol(sides[-1])
    return f"({', '.join([sides[-1]] * len(names))})" if valued else text


def by_letter(parts: list[str]) -> list[str]:
    """Assignments to neighbouring letters in the order of the alphabet (y=1, x=2 as x=2, y=1),
    as a tuple would have them."""
    names = [match[1] if (match := ASSIGNMENT.match(part)) else "" for part in parts]
    ordered = sorted(names)
    neighbours = all(names) and all(ord(right) - ord(left) == 1 for left, right in pairwise(ordered))
    return [part for _, part in sorted(zip(names, parts, strict=True))] if neighbours else parts


def assignments(text: str) -> list[str] | None:
    """(m, n) = (3, 5) as m = 3, n = 5; None for anything else."""
    sides, signs = relation(text)
    names, values = (tuple_items(side) or [] for side in sides) if signs == ["="] else ([], [])
    if not names or len(names) != len(values) or not all(is_symbol(name) for name in names):
        return None
    return [f"{name} = {value}" for name, value in zip(names, values, strict=True)]


def same_groups(gold: Group, answer: Group, compare: Comparison) -> bool:
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


def _brackets(piece: Group) -> tuple[str, str]:
    left = "(" if piece.items and piece.items[0].replace(" ", "") == "-\\infty" else piece.left
    right = ")" if piece.items and piece.items[-1].replace(" ", "") in ("\\infty", "+\\infty") else piece.right
    return left, right
