"""Rows of a gold and a prediction, as `tepo grade` and `tepo.grade` take them."""

import json
from collections.abc import Mapping
from typing import Any

from tepo.common.errors import UserError


def pair_of(row: Any) -> tuple[str, str]:
    """Gold and prediction as text. Raises UserError for what cannot be graded."""
    missing = [key for key in ("gold", "prediction") if not isinstance(row, Mapping) or key not in row]
    if missing:
        raise UserError(f"no {' and no '.join(missing)}", fix='each row needs "gold" and "prediction"')
    return _text("gold", row["gold"]), _text("prediction", row["prediction"])


def _text(key: str, value: Any) -> str:
    """Text as it is, a number as JSON writes it, nothing as no text."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{key} must be text or a number, not {json.dumps(value, default=str)[:40]}")
    return json.dumps(value)
