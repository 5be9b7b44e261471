"""Answers in LaTeX environments of rows: matrices (also as lists of lists) and definitions by cases."""

import re

from tepo.problems.grader.kinds.collections.pairing import pair_off
from tepo.problems.grader.kinds.protocol import Comparison
from tepo.problems.grader.text.latex_layout import ROW
from tepo.problems.grader.text.split import group, strip_parentheses

_MATRIX = re.compile(r"\\begin\{([a-zA-Z]*)(?:matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1(?:matrix|array)\}", re.DOTALL)


def matrix(text: str) -> tuple[str, list[list[str]]] | None:
    """(kind, rows of entries) of a matrix environment; the kind is "v" for determinants and "" for everything else."""
    inner = strip_parentheses(text)
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1].strip()
    match = _MATRIX.fullmatch(inner)
    if not match or "\\begin" in match[2]:  # [[1, 2], [3, 4]]
        outer = group(text)
        lists = [group(item) for item in outer.items] if outer and outer.left + outer.right == "[]" else []
        found = [list(row.items) for row in lists if row and row.left + row.right == "[]"]
        return ("", found) if len(lists) == len(found) > 1 else None
    rows = [[entry.strip() for entry in row.split("&")] for row in ROW.split(match[2].strip()) if row.strip()]
    return ("v" if match[1] in ("v", "V") else ""), rows


def same_matrices(gold: tuple[str, list[list[str]]], answer: tuple[str, list[list[str]]], compare: Comparison) -> bool:
    """Entry by entry."""
    if gold[0] != answer[0] or [len(row) for row in gold[1]] != [len(row) for row in answer[1]]:
        return compare.differ("shape")
    return all(all(map(compare.same, mine, theirs)) for mine, theirs in zip(gold[1], answer[1], strict=True))


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
