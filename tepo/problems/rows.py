"""Rows of data files: a problem with its answer, or a gold and a prediction (`tepo data grade`). A value is taken as
it is written, or the row is refused."""

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tepo.common.errors import UserError
from tepo.common.schema.reader import WrittenFloat
from tepo.problems.problem import Problem

_NEEDED = ("id", "problem", "answer")
_KEYS = 8  # others that are named of a row that lacks one of these
_SHOWN = 40  # characters of a number


class KeyTwice(ValueError):
    """A key is there twice, of which Python takes the last."""


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise KeyTwice(f"the key {Counter(key for key, _ in pairs).most_common(1)[0][0]!r} is there twice")
    return row


def _whole(text: str) -> int:
    if len(text) > sys.get_int_max_str_digits() > 0:
        raise ValueError(f"a number of {len(text):,} digits: put it in quotes")
    return int(text)


AS_WRITTEN: dict[str, Any] = {
    "object_pairs_hook": _keys_once,
    "parse_float": lambda text: WrittenFloat(text, text),
    "parse_int": _whole,
}
"""Of `json.loads`: a key that is there twice is refused, and a number keeps its text."""


def text_of(value: Any, what: str) -> str:
    """A text as it is, or a number as Python writes it. what: the value in a message. Raises ValueError for anything
    else, infinity, and a number that Python would change."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{what} is neither a text nor a number")
    if isinstance(value, WrittenFloat):
        try:
            is_exact = Decimal(value.text) == Decimal(repr(float(value)))
        except ArithmeticError:  # an exponent that no Decimal has
            is_exact = False
        if not is_exact:
            raise ValueError(f"{what} {value.text[:_SHOWN]} would be read as {float(value)!r}: put it in quotes")
    if isinstance(value, float) and math.isinf(value):
        raise ValueError(f"{what} is Infinity, which is no number of JSON; in quotes it is \\infty")
    return str(value)


def problem_of(row: Any) -> Problem:
    """The problem of a row, in a file or of the hub. Raises ValueError for what is no row, and for a gold that no
    response can match."""
    if not isinstance(row, dict):
        raise ValueError("not keys and values")
    missing = [key for key in _NEEDED if row.get(key) is None]
    if missing:
        others = [key for key in row if key not in _NEEDED][:_KEYS]
        raise ValueError(f"no {', '.join(missing)}" + (f", but {', '.join(others)}" if others else ""))
    if not isinstance(row["problem"], str):
        raise ValueError("the problem is no text")
    if not row["problem"].strip():
        raise ValueError("the problem is empty")
    name, answer = text_of(row["id"], "the id"), text_of(row["answer"], "the answer")
    _check_gold(answer, "the gold answer")
    return Problem(name, row["problem"], answer, str(row.get("subject") or row.get("level") or ""))


def pair_of(row: Any) -> tuple[str, str]:
    """Gold and prediction as text; a prediction may be missing, as null. Raises UserError for what cannot be graded."""
    missing = [key for key in ("gold", "prediction") if not isinstance(row, Mapping) or key not in row]
    if missing:
        raise UserError(f"no {' and no '.join(missing)}", fix='each row needs "gold" and "prediction"')
    texts = []
    for key in ("gold", "prediction"):
        value = row[key]
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise UserError(f"{key} must be text or a number, not {json.dumps(value, default=str)[:40]}")
        texts.append(json.dumps(value) if isinstance(value, int | float) else value or "")
    try:
        _check_gold(texts[0], "the gold")
        if not isinstance(row["gold"], str):
            text_of(row["gold"], "the gold")
    except ValueError as error:
        raise UserError(str(error), fix="mend the row, or leave it out") from None
    return texts[0], texts[1]


def _check_gold(text: str, what: str) -> None:
    if text.strip().lower() in ("", "nan"):
        raise ValueError(f"{what} is {'NaN' if text.strip() else 'empty'}")


def last_box(text: str) -> str:
    """Content of the last \\boxed{}, braces balanced, or the digit of `\\boxed 9`; an empty string without one."""
    _, box, last = text.rpartition("\\boxed")
    if box and (bare := re.match(r" (\d)", last)):
        return bare[1]
    depth = 0
    for index, character in enumerate(last if box and last.startswith("{") else ""):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return last[1:index]
    return ""
