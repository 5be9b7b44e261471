"""From plain values to typed dataclasses: keys, types, choices and bounds are checked here and nowhere else."""

import math
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from tepo.common.errors import UserError, unknown_name


class WrittenNumber:
    """A number of a file. text: as it is written there."""

    text: str


class WrittenInt(int, WrittenNumber):
    """A whole number."""

    def __new__(cls, value: int, text: str = "") -> "WrittenInt":
        number = super().__new__(cls, value)
        number.text = text
        return number


class WrittenFloat(float, WrittenNumber):
    """A number with a point or an exponent."""

    def __new__(cls, value: float | str, text: str = "") -> "WrittenFloat":
        number = super().__new__(cls, value)
        number.text = text
        return number


Keys = tuple[str | int, ...]


@dataclass(frozen=True)
class Location:
    """The keys down to a value, and what names them in a message: `origin(keys)` is a file with its line, say."""

    origin: Callable[[Keys], str]
    keys: Keys = ()

    def at(self, *keys: str | int) -> "Location":
        """The location of what lies below."""
        return Location(self.origin, self.keys + keys)

    @property
    def key(self) -> str:
        """`rows[0].label`."""
        text = ""
        for key in self.keys:
            text += f"[{key}]" if isinstance(key, int) else f".{key}"
        return text.removeprefix(".")

    def __str__(self) -> str:
        origin = self.origin(self.keys)
        return origin if not self.keys or origin.startswith(self.key) else f"{origin} ({self.key})"

    def error(self, what: str, fix: str = "") -> UserError:
        """A mistake here."""
        return UserError(what, where=str(self), fix=fix)

    def unknown(self, kind: str, name: Any, known: Any) -> UserError:
        """A name here that does not exist, with the nearest one."""
        return unknown_name(kind, str(name), known, where=str(self))

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put this location in front of what a UserError of somebody else says."""
        try:
            yield
        except UserError as error:
            where = f"{self}: {error.where}" if error.where else str(self)
            raise UserError(error.what, where=where, fix=error.fix) from None


REQUIRED: Any = MISSING  # the default of an option that must be written


class Exclusive(float):
    """A bound that is itself outside."""


def option(default: Any, meaning: str, *, low: float | None = None, high: float | None = None) -> Any:
    """A dataclass field that a person may write. low, high: bounds of a number, or of each number in a list or mapping;
    a number must be finite unless `high` is infinite."""
    metadata = {"meaning": meaning, "low": low, "high": high}
    if isinstance(default, dict | list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def derived(default: Any, meaning: str) -> Any:
    """A dataclass field that is filled in later, and that nobody may write."""
    return field(default=default, metadata={"meaning": meaning, "derived": True})


T = TypeVar("T")
Schema = Mapping[str, tuple[Any, Field[Any]]]


def read(kind: type[T], value: Any, at: Location) -> T:
    """The dataclass that a mapping means; dataclasses, lists and mappings below it are checked too.
    Raises UserError for an unknown or missing key and a value of the wrong type or range, or that the class refuses."""
    if not isinstance(value, Mapping):
        raise _wrong("is a mapping", value, {}, at)
    schema, arguments = _schema(cast(Any, kind)), {}
    prefix = f"{at.key}." if at.keys else ""
    for key in value:
        meta = schema[key][1].metadata if key in schema else None
        if meta is None:
            keys = [prefix + name for name, (_, part) in schema.items() if not part.metadata.get("derived")]
            raise at.at(str(key)).unknown("key", f"{prefix}{key}", keys)
        if meta.get("derived"):
            raise at.at(key).error(f"the key {key!r} is not allowed here", fix=meta["meaning"])
    for name, (hint, part) in schema.items():
        required = part.default is MISSING and part.default_factory is MISSING
        if name not in value and required:
            meaning = part.metadata.get("meaning")
            raise at.error(f"{at.at(name).key} is missing" + (f": {meaning}" if meaning else ""), fix=f"add {name}: …")
        nothing = value.get(name) is None and get_origin(hint) in (tuple, list, dict)  # `rows:` with nothing below
        if name in value and (required or not nothing):
            arguments[name] = _value(hint, value[name], part.metadata, at.at(name))
    with at.named():
        return kind(**arguments)


@cache
def _schema(kind: Any) -> Schema:
    """Name -> type and field."""
    hints = get_type_hints(kind)
    return {part.name: (hints[part.name], part) for part in fields(kind)}


# types ----------------------------------------------------------------------------------------------------------------
def _value(hint: Any, value: Any, meta: Mapping[str, Any], at: Location) -> Any:
    """A value in the type of its field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, Union):
        if value is None and type(None) in arguments:
            return None
        if isinstance(value, WrittenNumber) and str in arguments and type(value).__base__ in arguments:
            return value  # its owner knows whether its text counts
        return _value(_arm(arguments, value, meta, at), value, meta, at)
    if origin is Literal:
        return _chosen(value, arguments, at)
    if is_dataclass(hint):
        return read(cast(type, hint), value, at)
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            raise _wrong("is a list", value, meta, at)
        return origin(_value(arguments[0], part, meta, at.at(index)) for index, part in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong("is a mapping", value, meta, at)
        for key in value if get_origin(arguments[0]) is Literal else ():
            _chosen(key, get_args(arguments[0]), at.at(str(key)), f"key of {at.key}")
        return {str(key): _value(arguments[1], part, meta, at.at(str(key))) for key, part in value.items()}
    return _scalar(hint, value, meta, at)


def _arm(arms: tuple[Any, ...], value: Any, meta: Mapping[str, Any], at: Location) -> Any:
    """The type among several that a value is meant for."""
    arms = tuple(arm for arm in arms if arm is not type(None))
    shapes: dict[Any, Any] = {float: int | float, dict: Mapping, tuple: list}
    for arm in arms:
        plain = get_origin(arm) or arm
        if len(arms) == 1 or isinstance(value, shapes.get(plain, plain)):
            return arm
    raise _wrong("must be " + " or ".join(_WANTED[get_origin(arm) or arm] for arm in arms), value, meta, at)


def _chosen(value: Any, choices: tuple[Any, ...], at: Location, kind: str = "") -> Any:
    if value not in choices:
        raise at.unknown(kind or at.key, value, choices)
    return value


_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_WANTED = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    tuple: "a list",
    dict: "a mapping",
}


def _scalar(kind: type, value: Any, meta: Mapping[str, Any], at: Location) -> Any:
    """Text, true or false, or a number. A word that means one (off, 1e-3) counts: YAML 1.1 and Hydra differ in them."""
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    if kind is str and plain:
        return value.text if isinstance(value, WrittenNumber) else str(value)
    if kind is bool:
        truth = _TRUTHS.get(value.lower()) if isinstance(value, str) else value
        if isinstance(truth, bool):
            return truth
    if kind in (int, float) and plain:
        return _number(kind, value, meta, at)
    raise _wrong(f"must be {_WANTED[kind]}", value, meta, at)


def _number(kind: type, value: Any, meta: Mapping[str, Any], at: Location) -> float:
    """A number inside its bounds."""
    low, high = meta.get("low"), meta.get("high")
    try:
        number = _whole(value) if kind is int else float(value)
        valid = kind is int or math.isfinite(number) or number == high or not isinstance(value, float)
    except (ValueError, OverflowError):
        valid = False
    if not valid:
        raise _wrong(f"must be {_WANTED[kind]}", value, meta, at)
    under = low is not None and (number <= low if isinstance(low, Exclusive) else number < low)
    over = high is not None and (number >= high if isinstance(high, Exclusive) else number > high)
    if under or over:
        if not (low is None or high is None or isinstance(low, Exclusive) or isinstance(high, Exclusive)):
            bounds = f"between {low:g} and {high:g}"
        elif low is not None and under:
            bounds = f"at least {low:g}" if not isinstance(low, Exclusive) else f"above {low:g}" if low else "positive"
        else:
            assert high is not None
            limit = f"2^{math.log2(high):g}" if high >= 2**53 else f"{high:g}"
            bounds = f"below {limit}" if isinstance(high, Exclusive) else f"at most {limit}"
        raise _wrong(f"must be {bounds}", number, meta, at)
    return number


def _whole(value: str | float) -> int:
    """1000, and so 1e3, in digits or as a number. Raises ValueError for another."""
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = float(value)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError
    return int(value)


_HOW = {"is a list": "write [first, second]", "is a mapping": "write {key: value}"}


def _wrong(rule: str, value: Any, meta: Mapping[str, Any], at: Location) -> UserError:
    """The error for a value that is not what its field takes."""
    text = "nothing" if value is None else f"{value:g}" if isinstance(value, float) else repr(value)
    text = text if len(text) <= 80 else f"{text[:80]}…"
    quotes = "put it in quotes" if rule == "must be text" and value is not None else None
    fixes = (quotes, _HOW.get(rule), meta.get("meaning") and f"what it is for: {meta['meaning']}")
    return at.error(f"{at.key or 'this'} {rule}, not {text}", fix="; ".join(filter(None, fixes)))
