"""`vary:` of a study: axes of settings, crossed with each other and with the rows (docs/studies.md)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from tepo.common.schema import Location
from tepo.common.schema.reader import WrittenNumber
from tepo.config.compose import is_text

Words = tuple[str, ...]
Value = bool | int | str | float | None
Vary = dict[str, tuple[Value, ...] | dict[str, Words]]


@dataclass(frozen=True)
class Setting:
    """One value of each axis."""

    point: Mapping[str, str] = field(default_factory=dict)  # the axis as shown -> the value as written
    overrides: Words = ()  # what they set

    @classmethod
    def of(cls, axes: Iterable[str], values: Sequence[tuple[str, Words]]) -> "Setting":
        """A value of each axis, as written and as overrides."""
        point = {name: text for name, (text, _) in zip(axes, values, strict=True)}
        return cls(point, tuple(word for _, words in values for word in words))


def settings(vary: Vary) -> list[Setting]:
    """Every value of each axis with every value of the others, the last axis fastest; without an axis the one setting
    that sets nothing."""
    names, choices = shown_axes(vary).values(), [values_of(axis, values).items() for axis, values in vary.items()]
    return [Setting.of(names, point) for point in product(*choices)]


def values_of(axis: str, values: tuple[Value, ...] | dict[str, Words]) -> dict[str, Words]:
    """Each value of an axis as written, and the overrides that it means."""
    if isinstance(values, dict):
        return values
    return {text: (f"{axis}={text}",) for text in _texts(axis, values)}


def _texts(axis: str, values: tuple[Value, ...]) -> list[str]:
    """The values as overrides write them; a number of an axis that is text as the file writes it."""
    as_text = is_text(axis)
    return [value.text if as_text and isinstance(value, WrittenNumber) else value_text(value) for value in values]


def shown_axes(vary: Vary) -> dict[str, str]:
    """Each axis and its name in labels: without its section (`learning_rate`), unless two would be the same."""
    short = {axis: axis.partition(".")[2] or axis for axis in vary}
    names = list(short.values())
    return {axis: name if names.count(name) == 1 else axis for axis, name in short.items()}


def varied_keys(vary: Vary) -> set[str]:
    """The configuration keys that the settings set."""
    return {
        key_of(word) for axis, values in vary.items() for words in values_of(axis, values).values() for word in words
    }


def key_of(word: str) -> str:
    """The key that an override sets."""
    return word.partition("=")[0].lstrip("+").strip()


def check_values(vary: Vary, at: Location) -> None:
    """Each axis has values that differ, and sets keys of its own. Raises UserError."""
    owners: dict[str, str] = {}
    for axis, values in vary.items():
        here = at.at(axis)
        if not values:
            raise here.error(f"{here.key} names no values", fix=f"{axis}: [1, 2], or {axis}: {{NAME: [KEY=VALUE]}}")
        if any(isinstance(value, bool) for value in values) and is_text(axis):
            raise here.error(
                f"{axis} is text, and YAML reads yes, no, on and off as true or false", fix="put it in quotes"
            )
        texts = _texts(axis, values) if isinstance(values, tuple) else []
        for number, text in enumerate(texts):  # also as numbers: 1e-4 and 0.0001 would be one run under two labels
            for other in texts[:number]:
                if text == other if is_text(axis) else _number(text) == _number(other):
                    what = f"{here.key} lists {other} and {text}, which are the same"
                    raise here.at(number).error(what, fix="name it once")
        for key in {key_of(word) for words in values_of(axis, values).values() for word in words}:
            if owners.setdefault(key, axis) != axis:
                raise here.error(f"{owners[key]} and {axis} both set {key}", fix="vary a key in one of them")


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def value_text(value: Value) -> str:
    """A value as an override writes it; 2.5e-7 without the zero that Python puts into its exponent."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float():
            return str(value).replace("e-0", "e-")
    return str(value)
