"""Lists and sets of solutions: their elements, compared in any order."""

import re

from tepo.problems.grader.kinds.collections.interval import is_builder, listed_set, same_sets
from tepo.problems.grader.kinds.collections.pairing import DOTS, same_elided, same_in_any_order, same_in_order
from tepo.problems.grader.kinds.collections.tuples import (
    ASSIGNMENT,
    SIGN,
    as_tuple,
    assignments,
    by_letter,
    expansions,
    tuple_items,
)
from tepo.problems.grader.kinds.names import is_symbol
from tepo.problems.grader.kinds.protocol import Comparison
from tepo.problems.grader.text.split import THOUSANDS, comma_items, group, items, relation, union

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
