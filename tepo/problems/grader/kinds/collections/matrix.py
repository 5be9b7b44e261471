"""Matrices, in an environment or as lists of lists."""

import re

from tepo.problems.grader.kinds.protocol import Comparison
from tepo.problems.grader.text.latex_layout import ROW
from tepo.problems.grader.text.split import group, strip_parentheses

_MATRIX = re.compile(r"\\begin\{([a-zA-Z]*)(?:matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1(?:matrix|array)\}", re.DOTALL)


def _nested_lists(text: str) -> tuple[str, list[list[str]]] | None:
    """[[1, 2], [3, 4]]."""
    outer = group(text)
    rows = [group(item) for item in outer.items] if outer and outer.left + outer.right == "[]" else []
    if len(rows) < 2 or not all(row and row.left + row.right == "[]" for row in rows):
        return None
    return "", [list(row.items) for row in rows if row]


def matrix(text: str) -> tuple[str, list[list[str]]] | None:
    """(kind, rows of entries) of a matrix environment; the kind is "v" for determinants and "" for everything else."""
    inner = strip_parentheses(text)
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1].strip()
    match = _MATRIX.fullmatch(inner)
    if not match or "\\begin" in match[2]:
        return _nested_lists(text)
    rows = [[entry.strip() for entry in row.split("&")] for row in ROW.split(match[2].strip()) if row.strip()]
    return ("v" if match[1] in ("v", "V") else ""), rows


def same_matrices(gold: tuple[str, list[list[str]]], answer: tuple[str, list[list[str]]], compare: Comparison) -> bool:
    """Entry by entry."""
    if gold[0] != answer[0] or [len(row) for row in gold[1]] != [len(row) for row in answer[1]]:
        return compare.differ("shape")
    return all(all(map(compare.same, mine, theirs)) for mine, theirs in zip(gold[1], answer[1], strict=True))
