"""Units of measurement: the table, and products and powers of its words."""

import re
from dataclasses import dataclass
from fractions import Fraction

_TABLE = (
    ("length", "1", "m", "meter", "metre"), ("length", "1000", "km", "kilometer", "kilometre"),
    ("length", "1/100", "cm", "centimeter", "centimetre"), ("length", "1/1000", "mm", "millimeter", "millimetre"),
    ("length", "1/10", "dm", "decimeter", "decimetre"), ("length", "1/1000000000", "nm", "nanometer"),
    ("length", "127/5000", "in", "inch"), ("length", "381/1250", "ft", "foot", "feet"),
    ("length", "1143/1250", "yd", "yard"), ("length", "201168/125", "mi", "mile"),
    ("mass", "1", "g", "gram", "gm"), ("mass", "1000", "kg", "kilogram"), ("mass", "1/1000", "mg", "milligram"),
    ("weight", "1", "oz", "ounce"), ("weight", "16", "lb", "lbs", "pound-mass"),
    ("mass", "1000000", "tonne", "t"), ("ton", "1", "ton"),
    ("time", "1", "s", "sec", "second"), ("time", "60", "min", "minute", "mins"),
    ("time", "3600", "h", "hr", "hour", "hrs"), ("time", "86400", "day", "d"), ("time", "604800", "week"),
    ("month", "1", "month"), ("month", "12", "year", "yr"),
    ("time", "1/1000", "ms", "millisecond"),
    ("volume", "1", "L", "l", "liter", "litre"), ("volume", "1/1000", "mL", "ml", "milliliter", "millilitre"),
    ("gallon", "1", "gallon", "gal"), ("quart", "1", "quart"), ("cup", "1", "cup"),
    ("money", "1", "dollar", "usd", "$"), ("money", "1/100", "cent", "¢"), ("euro", "1", "euro", "eur"),
    ("pound", "1", "pound", "gbp"), ("yen", "1", "yen"), ("rupee", "1", "rupee", "rs"),
    ("angle", "1", "deg", "degree"), ("angle-rad", "1", "rad", "radian"),
    ("temperature-c", "1", "celsius", "degc"), ("temperature-f", "1", "fahrenheit", "degf"),
    ("kelvin", "1", "K", "kelvin"),
    ("force", "1", "N", "newton"), ("energy", "1", "J", "joule"), ("energy", "1000", "kJ", "kilojoule"),
    ("power", "1", "W", "watt"), ("power", "1000", "kW", "kilowatt"),
    ("pressure", "1", "Pa", "pascal"), ("pressure", "1000", "kPa"),
    ("frequency", "1", "Hz", "hertz"), ("voltage", "1", "V", "volt"), ("current", "1", "A", "ampere", "amp"),
    ("amount", "1", "mol", "mole"),
    ("data", "1", "MB", "megabyte"), ("data", "1000", "GB", "gigabyte"), ("data", "1/1000", "KB", "kilobyte"),
    ("percent", "1", "%", "percent", "percentage", "pct"), ("permille", "1", "permille"),
)  # fmt: skip
_BASE = {word: (dimension, Fraction(factor)) for dimension, factor, *words in _TABLE for word in words}
"""Unit word -> (dimension, factor to its base unit)."""

_COMPOUND = {
    "mph": (("mi", 1), ("h", -1)), "kph": (("km", 1), ("h", -1)), "kmh": (("km", 1), ("h", -1)),
    "kmph": (("km", 1), ("h", -1)), "fps": (("ft", 1), ("s", -1)),
    "sqft": (("ft", 2),), "sqm": (("m", 2),), "cc": (("cm", 3),),
}  # fmt: skip
_GENERIC = {"unit", "u"}
_FILLERS = {"of", "a", "an", "the", "each", "in", "about", "approximately"}
_SHAPES = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_AFTER = {"squared": 2, "cubed": 3}
REFUSALS = r"wrong|incorrect|false|untrue|invalid|reject\w*|extraneous|mistak\w*|impossible|discard\w*"
HEDGES = (
    r"unless|except\w*|but|however|although|though|maybe|perhaps|possibly|probably|actually|correction|wait|unsure"
    r"|uncertain|depend\w*"
)
DOUBTS = rf"{REFUSALS}|{HEDGES}|otherwise|sometimes|never|neither|nor|none"
"""Words behind an answer that take it back or bind it to cases: all of DOUBTS. A reason for an answer may hold those
that are not HEDGES, and words before an answer those that are not REFUSALS."""
_NO_UNIT = re.compile(rf"squared|cubed|factorial|dozens?|not|if|when|or|{DOUBTS}", re.IGNORECASE)
"""What stands with these is another value, or none: 10 squared, 10 is wrong."""

_INCHES = re.compile(r"^\W*in\W*$|\bin\.? ?\^|(?:/|\b(?:per|sq\.?|square|cu\.?|cubic)) ?in\b|\bin[23]\b")
"""The "in" of inches: with a power, under "per" or "square", or alone."""
_TOGETHER = re.compile(r"\b(k?m)(?=[sh] ?\^ ?\{?-)")
"""ms^{-1} is metres per second, not one over milliseconds."""
_WORD = re.compile(r"([a-zA-Z$¢%]+)\.?|\^\s*\{?(-?\d)\}?|(?<=[a-zA-Z])([23])(?!\d)|(/|\bper\b)|\\cdot|[\s.~-]|(.)")


@dataclass(frozen=True, slots=True)
class Unit:
    """`dimension`: sorted (base dimension, power); `factor` to the base units; `name` holds words outside the table.
    A generic unit ("units", "square units") has neither."""

    dimension: tuple[tuple[str, int], ...]
    factor: Fraction
    name: str = ""

    @property
    def generic(self) -> bool:
        return not self.dimension and not self.name

    def is_only(self, name: str) -> bool:
        return self.dimension == ((name, 1),)


def known(word: str) -> str | None:
    """The table's key for a word, plural or not; None for others. Case counts for single letters only."""
    for candidate in (word, word.lower(), word.lower().removesuffix("s"), word.lower().removesuffix("es")):
        if (candidate in _BASE or candidate in _COMPOUND) and (len(word) > 1 or candidate == word):
            return candidate
    return None


def parse_unit(text: str) -> Unit | None:
    """The unit a phrase names: `cm^{2}`, `km/h`, `square feet`, `apples`. None when it holds anything else."""
    powers: list[tuple[str, int]] = []
    sign, shape, table = 1, 1, True
    for word, power, digit, per, other in _WORD.findall(_TOGETHER.sub(r"\1 ", text.replace("^{\\circ}", " deg "))):
        if other:
            return None
        if per or word.lower() == "per":
            sign = -1
        elif power or digit:
            if not powers:
                return None
            powers[-1] = (powers[-1][0], powers[-1][1] * int(power or digit))
        elif word.lower() in _AFTER and powers:
            powers[-1] = (powers[-1][0], powers[-1][1] * _AFTER[word.lower()])
        elif _NO_UNIT.fullmatch(word):
            return None
        elif word.lower() in _SHAPES:
            shape = _SHAPES[word.lower()]
        elif word and (word.lower() not in _FILLERS or (word == "in" and _INCHES.search(text))):
            name = known(word)
            table &= name is not None
            powers.append((name or word.lower().removesuffix("s"), sign * shape))
            shape = 1
    if any(known(name) == "percent" or name in ("%", "percentage", "pct") for name, _ in powers):
        powers, table = [("percent", 1)], True
    if not powers:
        return None
    if not table:
        generic = all(name in _GENERIC for name, _ in powers)
        return Unit((), Fraction(1), "" if generic else " ".join(name for name, _ in powers))
    dimension: dict[str, int] = {}
    factor = Fraction(1)
    for name, power in powers:
        for base, exponent in _COMPOUND.get(name, ((name, 1),)):
            kind, scale = _BASE[base]
            dimension[kind] = dimension.get(kind, 0) + power * exponent
            factor *= scale ** (power * exponent)
    return Unit(tuple(sorted((kind, power) for kind, power in dimension.items() if power)), factor)
