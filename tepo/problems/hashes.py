"""Fingerprints of problem sets, so that a different copy of a benchmark cannot pass for the one a table was measured on.

Copies of the same benchmark differ (QwenLM/Qwen3 issue 1183), so a set is pinned by content: one hash over all
(problem, answer) rows in order, and a short hash a row (`hashes/NAME.txt`, line n for row n) that says which rows differ.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from tepo.problems.base import Problem

FOLDER = Path(__file__).parent / "hashes"
ROW_DIGITS = 6  # 24 bits: enough to point at a changed row; the set's own hash is what proves equality


def set_hash(problems: Sequence[Problem]) -> str:
    """SHA-256 (hex) over the (statement, answer) pairs in order. Ids and families do not count."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(_row(problem) + b"\n")
    return digest.hexdigest()


def row_hashes(problems: Sequence[Problem]) -> list[str]:
    """One short hash a problem."""
    return [hashlib.sha256(_row(problem)).hexdigest()[:ROW_DIGITS] for problem in problems]


def expected_row_hashes(name: str) -> list[str]:
    """The pinned row hashes of a set, or an empty list where none are shipped."""
    path = FOLDER / f"{name}.txt"
    return path.read_text().split() if path.is_file() else []


def differing_rows(problems: Sequence[Problem], expected: Sequence[str]) -> list[int]:
    """Indices where the row hashes disagree, the longer list's surplus included."""
    found = row_hashes(problems)
    both = min(len(found), len(expected))
    return [index for index in range(both) if found[index] != expected[index]] + list(range(both, max(len(found), len(expected))))


def _row(problem: Problem) -> bytes:
    return json.dumps([problem.prompt, problem.answer], ensure_ascii=True, separators=(",", ":")).encode()
