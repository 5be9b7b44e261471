"""Statements of a dataclass field: which values may be written there."""

from collections.abc import Callable
from dataclasses import MISSING, field, fields
from typing import Any

REQUIRED: Any = MISSING  # the default of an option that must be written


class Exclusive(float):
    """A bound that is itself outside."""


def option(
    default: Any,
    meaning: str,
    *,
    source: str = "",
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    when: Callable[[Any], bool] | None = None,
) -> Any:
    """A dataclass field that a person may write.

    choices: the words it takes, where its type is no Literal. low, high: bounds of a number, or of each number in a
    list or mapping; a number must be finite unless `high` is infinite. source: where the default comes from.
    when: whether it has a say beside the other fields of its object.
    """
    metadata = {"meaning": meaning, "source": source, "choices": choices, "low": low, "high": high, "when": when}
    if isinstance(default, dict | list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def derived(default: Any, meaning: str) -> Any:
    """A dataclass field that is filled in later, and that nobody may write."""
    return field(default=default, metadata={"meaning": meaning, "derived": True})


def in_force(options: Any, name: str) -> bool:
    """Tell whether a field has an effect beside the others of its object."""
    when = next(part.metadata.get("when") for part in fields(options) if part.name == name)
    return when is None or bool(when(options))
