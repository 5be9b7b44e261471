"""Declarations in YAML, checked strictly: an unknown key or a value of the wrong type names the file, the key
and the nearest valid one."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tepo.errors import UserError, unknown_name

T = TypeVar("T")


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping a YAML file holds. Raises UserError with the line of a syntax error, or when it is no mapping."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise UserError(
            f"not valid YAML: {getattr(error, 'problem', None) or error}",
            where=place,
            fix="check indentation, quotes and colons",
        ) from None
    if not isinstance(value, dict):
        raise UserError("the file must hold a mapping of keys to values", where=str(path))
    return value


def build(kind: type[T], mapping: Any, where: str, prefix: str = "") -> T:
    """A dataclass from a plain mapping;
    nested dataclasses, `X | None`, lists and string-keyed mappings are checked too.

    Raises UserError for an unknown or missing key or a wrong type, naming `where` (the file) and the dotted key.
    """
    if not isinstance(mapping, Mapping):
        raise UserError(f"{prefix.rstrip('.') or 'this'} must be a mapping, not {mapping!r}", where=where)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in mapping:
        if key not in fields:
            raise unknown_name("key", f"{prefix}{key}", [prefix + name for name in fields], where=where)
    missing = [
        name
        for name, field in fields.items()
        if name not in mapping and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UserError(
            f"missing key {prefix + missing[0]!r}",
            where=where,
            fix=f"add it; needed: {', '.join(prefix + name for name in missing)}",
        )
    hints = typing.get_type_hints(kind)
    return kind(**{key: _convert(hints[key], value, where, prefix + key) for key, value in mapping.items()})


def _convert(hint: Any, value: Any, where: str, key: str) -> Any:
    """`value` as the type `hint` asks for."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _convert(next(a for a in arguments if a is not type(None)), value, where, key)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, where, key + ".")
    if origin is tuple and isinstance(value, list):
        return tuple(_convert(arguments[0], part, where, f"{key}[{index}]") for index, part in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {
            _convert(arguments[0], k, where, key): _convert(arguments[1], v, where, f"{key}.{k}")
            for k, v in value.items()
        }
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    wanted = {
        tuple: "a list",
        dict: "a mapping",
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
    }.get(origin or hint, str(hint))
    raise UserError(f"{key} must be {wanted}, not {value!r}", where=where)
