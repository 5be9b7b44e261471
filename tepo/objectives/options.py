"""Typed options of one axis, checked strictly:
an unknown key, kind or value is an error that names the nearest valid one.

Every axis (advantage, ratio, surrogate …) is a handful of frozen dataclasses, one per kind. Fields are made with
`option`, so that a default carries its meaning and its source (paper and section) to `tepo explain`.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from typing import Any, get_args, get_type_hints

from tepo.errors import UserError, unknown_name

EPS_SOURCE = "verl compute_grpo_outcome_advantage; the papers print none"


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
    """A dataclass field of an axis: `low` and `high` bound a number (inclusive), `choices` a word,
    `source` is where the default comes from, `when` says whether it has a say beside the kind's other settings."""
    metadata = {"meaning": meaning, "source": source, "choices": choices, "low": low, "high": high, "when": when}
    return field(default=default, metadata=metadata)


def parse(axis: str, given: Any, kinds: Mapping[str, type], *, tag: str = "kind", where: str = "") -> Any:
    """The options dataclass that `{kind: NAME, key: value …}` means. `tag` is the key that names the kind.

    Raises UserError for anything that is not such a mapping, an unknown kind or key,
    and a value of the wrong type or range."""
    if isinstance(given, str):
        given = {tag: given}
    if not isinstance(given, Mapping):
        raise UserError(f"{axis} must be a mapping like {{{tag}: {next(iter(kinds))}}}, not {given!r}", where=where)
    name = given.get(tag)
    if name is None:
        raise UserError(
            f"{axis}.{tag} is missing", where=where, fix=f"add {axis}.{tag}=…; valid: {', '.join(sorted(kinds))}"
        )
    if name not in kinds:
        raise unknown_name(f"{axis}.{tag}", str(name), kinds, where=where)
    cls = kinds[name]
    valid = [part.name for part in fields(cls)]
    for key in given:
        if key != tag and key not in valid:
            owners = [other for other, kind in kinds.items() if any(part.name == key for part in fields(kind))]
            if owners:  # a kind was changed and the keys of the old one stayed
                raise UserError(
                    f"{axis}.{key} belongs to {tag}: {', '.join(owners)}, not to {tag}: {name}",
                    where=where,
                    fix=f"write {axis}: {{{tag}: {name}}} (on the command line objective.{axis}={name}), "
                    "which starts the axis anew",
                )
            raise unknown_name(f"key of {axis} ({tag}: {name})", str(key), [tag, *valid], where=where)
    hints = get_type_hints(cls)
    values = {}
    for part in fields(cls):
        if part.name in given:
            values[part.name] = _checked(
                f"{axis}.{part.name}", given[part.name], hints[part.name], part.metadata, where
            )
        elif part.default is MISSING:
            raise UserError(f"{axis}.{part.name} is missing: {part.metadata['meaning']}", where=where)
    return cls(**values)


def _checked(key: str, value: Any, hint: Any, metadata: Mapping[str, Any], where: str) -> Any:
    """The value in the type of its field."""
    types = get_args(hint) or (hint,)
    if value is None and type(None) in types:
        return None
    if bool in types:
        if not isinstance(value, bool):
            raise UserError(f"{key} must be true or false, not {value!r}", where=where)
        return value
    if str in types:
        if metadata["choices"] and value not in metadata["choices"]:
            raise unknown_name(key, str(value), metadata["choices"], where=where)
        return value
    return _checked_number(key, value, metadata, where)


def _checked_number(key: str, value: Any, metadata: Mapping[str, Any], where: str) -> float:
    """A finite number inside its bounds.

    YAML reads 1e-3 (without a point) as a word, so words that are numbers count.
    """
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not abs(number) < float("inf"):
        raise UserError(f"{key} must be a number, not {value!r}", where=where)
    low, high = metadata["low"], metadata["high"]
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = (
            f"between {low:g} and {high:g}"
            if low is not None and high is not None
            else f"at least {low:g}"
            if low is not None
            else f"at most {high:g}"
        )
        raise UserError(f"{key} must be {bounds}, not {number:g}", where=where)
    return number


def in_force(options: Any, key: str) -> bool:
    """Whether a setting has a say, given the others of its axis."""
    when = next(part.metadata["when"] for part in fields(options) if part.name == key)
    return when is None or when(options)


def to_mapping(options: Any, kinds: Mapping[str, type], *, tag: str = "kind") -> dict[str, Any]:
    """The full mapping (defaults included) that `parse` turns into these options."""
    name = next(name for name, cls in kinds.items() if cls is type(options))
    return {tag: name, **{part.name: getattr(options, part.name) for part in fields(options)}}
