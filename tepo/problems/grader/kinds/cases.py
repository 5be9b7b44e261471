"""Definitions by cases."""

import re

from tepo.problems.grader.kinds.collections.pairing import pair_off
from tepo.problems.grader.kinds.protocol import Comparison
from tepo.problems.grader.text.latex_layout import ROW

_IF = re.compile(r"^(?:\\text\{,? ?(?:if|for|when|whenever|where) ?([^{}]*)\}|\\text\{,? ?(?:otherwise|else)\})")
_CASES = re.compile(r"\\begin\{cases\}(.*)\\end\{cases\}", re.DOTALL)


def piecewise(text: str) -> list[tuple[str, str]] | None:
    r"""(value, condition) pairs of a canonical definition by cases; the condition of `\text{otherwise}` is empty."""
    match = _CASES.fullmatch(text) if text.startswith("\\begin{cases}") else None
    if not match:
        return None
    rows = [row.partition("&") for row in ROW.split(match[1])]
    return [(value.strip().rstrip(", "), _condition(condition.strip())) for value, _, condition in rows]


def _condition(text: str) -> str:
    r"""n \text{is even} as n \text{even}; without the word that leads it in."""
    text = _IF.sub(lambda match: f"\\text{{{match[1]}}}" if match[1] else "", text, count=1)
    text = re.sub(r"\\text\{(?:is|are) ?", r"\\text{", text).replace("\\text{}", "")
    return "" if text in ("otherwise", "else") else text.strip()


def same_cases(gold: str, answer: str, compare: Comparison) -> bool | None:
    """The same values under the same conditions, in any order; "otherwise" is the one condition that the other side
    writes out. None unless both are definitions by cases."""
    golds, answers = piecewise(gold), piecewise(answer)
    if not golds or not answers:
        return None
    free = all(any(not condition for _, condition in side) for side in (golds, answers))

    def same_case(mine: tuple[str, str], theirs: tuple[str, str]) -> bool:
        otherwise = mine[1] == theirs[1] if free else not mine[1] or not theirs[1]
        return compare.same(mine[0], theirs[0]) and (otherwise or compare.same(mine[1], theirs[1]))

    return pair_off(golds, answers, same_case) or compare.differ("cases")
