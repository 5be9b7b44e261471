"""Fingerprints of problem sets, so that a different copy of a benchmark cannot pass for the one a table was measured
on.

Copies of the same benchmark differ (QwenLM/Qwen3 issue 1183), so a set is pinned by content: one hash over all
(statement, answer) rows in order, and a short hash a row (`pinned/NAME.txt`, line n for row n) that says which rows
differ, and that finds the pinned rows in a copy that has them in another order or among others."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from tepo.problems.problem import Problem

FOLDER = Path(__file__).parent / "pinned"
ROW_DIGITS = 10  # 40 bits: no two of the 38,000 pinned rows collide, and the set's own hash is what proves equality


def set_hash(problems: Sequence[Problem]) -> str:
    """SHA-256 (hex) of the compact JSON list of [statement, answer] pairs in order, outer white space removed. Ids do
    not count."""
    pairs = [[problem.prompt.strip(), problem.answer.strip()] for problem in problems]
    return hashlib.sha256(_json(pairs)).hexdigest()


def rows_hash(problems: Sequence[Problem], *, ids: bool = False) -> str:
    """SHA-256 (hex) of statements, answers, columns and system prompts in order, white space and all: two lists with
    the same hash give a policy the same prompts and the same rewards. `ids`: they count too, as where draws depend on
    them."""
    rows = [
        [
            problem.prompt,
            problem.answer,
            *([problem.id] if ids else []),
            *([problem.columns] if problem.columns else []),
            *([problem.system] if problem.system else []),
        ]
        for problem in problems
    ]
    return hashlib.sha256(_json(rows)).hexdigest()


def row_hashes(problems: Sequence[Problem]) -> list[str]:
    """One short hash a problem."""
    texts = [_json([problem.prompt.strip(), problem.answer.strip()]) for problem in problems]
    return [hashlib.sha256(text).hexdigest()[:ROW_DIGITS] for text in texts]


def pinned_rows(name: str) -> list[str]:
    """The pinned row hashes of a set, or an empty list where none are shipped."""
    path = FOLDER / f"{name}.txt"
    return path.read_text(encoding="utf-8").split() if path.is_file() else []


def differing_rows(problems: Sequence[Problem], pinned: Sequence[str]) -> list[int]:
    """Indices where the row hashes disagree, the longer list's surplus included."""
    return [
        index
        for index, (row_hash, pinned_hash) in enumerate(zip_longest(row_hashes(problems), pinned))
        if row_hash != pinned_hash
    ]


def pick_pinned(problems: Sequence[Problem], pinned: Sequence[str], name: str) -> list[Problem] | None:
    """The pinned rows in the pinned order with their ids `NAME-n`, or None when a row is missing."""
    by_hash = dict(zip(row_hashes(problems), problems, strict=True))
    if not pinned or any(key not in by_hash for key in pinned):
        return None
    return numbered([by_hash[key] for key in pinned], name)


def numbered(problems: Sequence[Problem], name: str) -> list[Problem]:
    """The problems with ids `NAME-n`."""
    return [replace(problem, id=f"{name}-{index}") for index, problem in enumerate(problems)]


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
