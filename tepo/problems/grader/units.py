r"""Units of measurement, and quantities with one: `8 \text{ inches}^2`, `\$36`, `62.5\%`, `9 km/h`."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from tepo.problems.grader.brackets import TEXT
from tepo.problems.grader.numbers import parse_number

_TABLE = """
    length: 1 m meter metre, 1000 km kilometer kilometre, 1/100 cm centimeter centimetre
    length: 1/1000 mm millimeter millimetre, 1/10 dm decimeter decimetre, 1/1000000000 nm nanometer
    length: 127/5000 in inch, 381/1250 ft foot feet, 1143/1250 yd yard, 201168/125 mi mile
    mass: 1 g gram gm, 1000 kg kilogram, 1/1000 mg milligram, 1000000 tonne t
    weight: 1 oz ounce, 16 lb lbs pound-mass; ton: 1 ton
    time: 1 s sec second, 60 min minute mins, 3600 h hr hour hrs, 86400 day d, 604800 week, 1/1000 ms millisecond
    month: 1 month, 12 year yr; volume: 1 L l liter litre, 1/1000 mL ml milliliter millilitre; gallon: 1 gallon gal
    quart: 1 quart; cup: 1 cup; money: 1 dollar usd $, 1/100 cent ¢; euro: 1 euro eur; pound: 1 pound gbp
    yen: 1 yen; rupee: 1 rupee rs; angle: 1 deg degree; angle-rad: 1 rad radian; temperature-c: 1 celsius degc
    temperature-f: 1 fahrenheit degf; kelvin: 1 K kelvin; force: 1 N newton; energy: 1 J joule, 1000 kJ kilojoule
    power: 1 W watt, 1000 kW kilowatt; pressure: 1 Pa pascal, 1000 kPa; frequency: 1 Hz hertz; voltage: 1 V volt
    current: 1 A ampere amp; amount: 1 mol mole; data: 1 MB megabyte, 1000 GB gigabyte, 1/1000 KB kilobyte
    percent: 1 % percent percentage pct; permille: 1 permille
"""
_BASE: dict[str, tuple[str, Fraction]] = {}
"""Unit word -> (dimension, factor to its base unit)."""
for _kind in re.split(r"[;\n]", _TABLE.strip()):
    _dimension, _, _units = _kind.strip().partition(": ")
    for _factor, *_words in map(str.split, _units.split(", ")):
        _BASE |= dict.fromkeys(_words, (_dimension, Fraction(_factor)))

_COMPOUND = {
    "mph": (("mi", 1), ("h", -1)), "kph": (("km", 1), ("h", -1)), "kmh": (("km", 1), ("h", -1)),
    "kmph": (("km", 1), ("h", -1)), "fps": (("ft", 1), ("s", -1)),
    "sqft": (("ft", 2),), "sqm": (("m", 2),), "cc": (("cm", 3),),
}  # fmt: skip
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


class UnitOfMeasure(NamedTuple):
    dimension: tuple[tuple[str, int], ...]  # sorted (base dimension, power); a generic unit ("square units") has none
    factor: Fraction  # to the base units
    name: str = ""  # words outside the table


def known(word: str) -> str | None:
    """The table's key for a word, plural or not; None for others. Case counts for single letters only."""
    for candidate in (word, word.lower(), word.lower().removesuffix("s"), word.lower().removesuffix("es")):
        if (candidate in _BASE or candidate in _COMPOUND) and (len(word) > 1 or candidate == word):
            return candidate
    return None


def parse_unit(text: str) -> UnitOfMeasure | None:
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
        words = [name for name, _ in powers]
        return UnitOfMeasure((), Fraction(1), "" if {"unit", "u"}.issuperset(words) else " ".join(words))
    dimension: dict[str, int] = {}
    factor = Fraction(1)
    for name, power in powers:
        for base, exponent in _COMPOUND.get(name, ((name, 1),)):
            kind, scale = _BASE[base]
            dimension[kind] = dimension.get(kind, 0) + power * exponent
            factor *= scale ** (power * exponent)
    return UnitOfMeasure(tuple(sorted((kind, power) for kind, power in dimension.items() if power)), factor)


_TOKEN = re.compile(
    r"\\text\{[^{}]*\}|\^\{\\circ\}|\\[a-zA-Z]+|\\.|[a-zA-Z$¢]+|\^\s*(?:\{-?\d\}|-?\d)|\d+|.", re.DOTALL
)
_EXPONENT = re.compile(r"\^\s*(?:\{-?\d\}|-?\d)")
_CURRENCY = re.compile(
    r"(-?)\s*(?:US|USD)?\s*\\text\{(dollar|euro|pound|yen|rupee|Rs\.?|USD|US dollar)s?\}\s*(-?)\s*(?=[\d.\\(])"
)
_SCALE = re.compile(r"\^\{\\circ\}\s*(?:\\text\{\s*([CF])\s*\}|([CF])(?![a-zA-Z]))")
_HEAD_END = re.compile(r"(?:[\d.)}\]!|]|\\(?:pi|infty))\s*-?\s*$")
_TRIGONOMETRIC = re.compile(r"\\(?:cis|sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_NO_UNITS = (
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp lim max gcd lcm det deg mod"
    " and or if is choose for where when with i e x y z n k"
)
_FUNCTIONS = frozenset(_NO_UNITS.split())


def quantity(text: str, *, letters: bool = False) -> tuple[str, UnitOfMeasure | None]:
    """(number, unit or None) of canonical text. The unit is a trailing word in `\\text{}`, a trailing unit word, a
    degree or per cent sign, or a leading currency. A lone bare letter (6m) is a variable, not a unit, unless `letters`
    (the other side has a unit)."""
    if match := _CURRENCY.match(text):
        word = match[2].lower().rstrip(".")
        unit = parse_unit("dollar" if "usd" in word or "us " in word else word)
        return (match[1] or match[3]) + text[match.end() :].strip(), unit
    text = _SCALE.sub(lambda match: "\\text{deg" + (match[1] or match[2]).lower() + "}", text)
    start = _tail(text)
    if start is None:
        return text, None
    head, tail = text[:start].strip(), text[start:]
    if _TRIGONOMETRIC.search(head):
        return text, None
    words = re.findall(r"[a-zA-Z$¢]+", tail)
    if "\\text" in tail or "^{\\circ}" in tail or "%" in tail:
        named = True
    elif len(words) == 1 and len(words[0]) == 1:
        named = words[0] in "$¢" or (letters and known(words[0]) is not None)
    else:  # short unknown bare words are variables
        named = all(known(word) or (len(word) >= 3 and len(words) <= 4) or word.lower() == "of" for word in words)
    unit = parse_unit(TEXT.sub(r" \1 ", tail)) if named else None
    return (text, None) if unit is None else (head.rstrip("- "), unit)


def _tail(text: str) -> int | None:
    """Start of the trailing unit: the longest run of unit-like tokens at the end that follows a number."""
    tokens = [(match.start(), match.group()) for match in _TOKEN.finditer(text)]
    start = None
    for index in range(len(tokens) - 1, -1, -1):
        position, token = tokens[index]
        unit = token.startswith("\\text") or token in ("^{\\circ}", "%", "$", "¢")
        word = token.isalpha() and token.isascii() and (token == "N" or token.lower() not in _FUNCTIONS)
        if unit or word:
            if _HEAD_END.search(text[:position]) or (token.startswith("\\text") and text[:position].strip()):
                start = position
        elif token in ("2", "3") and index and known(tokens[index - 1][1]):
            continue
        elif not (token.isspace() or token in ("/", ".", "-", "\\cdot", "per") or _EXPONENT.fullmatch(token)):
            break
    return start


_SPACED_LETTER = re.compile(r"(.+) [msgL]")
_POUNDS = {parse_unit("pound"), parse_unit("lb")}
"""Pounds are money until the other side weighs."""
_PERCENT, _DEGREES, _RADIANS, _CELSIUS = (((name, 1),) for name in ("percent", "angle", "angle-rad", "temperature-c"))


def same_amount(gold: str, answer: str, leaf: Callable[[str, str], bool]) -> tuple[bool, str]:
    """(equal, why not). A unit may be missing on one side; two units must agree, converted where the table can."""
    left, mine = quantity(gold)
    right, theirs = quantity(answer)
    if (mine is None) != (theirs is None):  # 8m is eight metres beside 8 \\text{ m}
        left, mine = (left, mine) if mine else quantity(gold, letters=True)
        right, theirs = (right, theirs) if theirs else quantity(answer, letters=True)
    if mine is None and theirs is None:
        left, right = _without_letter(left, right), _without_letter(right, left)
    pairs, note = _readings(left, mine, right, theirs)
    return any(leaf(*pair) for pair in pairs), note


def _readings(
    left: str, mine: UnitOfMeasure | None, right: str, theirs: UnitOfMeasure | None
) -> tuple[list[tuple[str, str]], str]:
    """Pairs of numbers one of which must agree, and what to note where none does."""
    plain, dimensions = [(left, right)], [unit.dimension if unit else None for unit in (mine, theirs)]
    if dimensions == [None, None] or any(unit and not unit.dimension and not unit.name for unit in (mine, theirs)):
        return plain, "different"
    if _PERCENT in dimensions:
        if mine and theirs:
            return plain if mine.dimension == theirs.dimension else [], "unit"
        # 50% is 0.5; it is 50 too when the sign was left out, which a number below 1 cannot mean
        hundredth, number = Fraction(1, 100), parse_number(right if mine else left)
        scaled = (_scaled(left, hundredth), right) if mine else (left, _scaled(right, hundredth))
        return [scaled, *(plain if number and abs(number.value) >= 1 else [])], "different"
    if mine and theirs and (mine.name or theirs.name or {mine, theirs} == _POUNDS):
        return plain if mine.name == theirs.name else [], "unit"
    if mine and theirs and mine.dimension == theirs.dimension:
        return [(left, right if mine.factor == theirs.factor else _scaled(right, theirs.factor / mine.factor))], "unit"
    radian = [unit.dimension == _RADIANS if unit else "\\pi" in text for unit, text in ((mine, left), (theirs, right))]
    angles = []
    if dimensions[0] == _DEGREES and radian[1]:  # 90^\circ is \pi/2, written with \pi or with the word
        angles = [(f"\\frac{{{left}\\pi}}{{180}}", right)]
    elif dimensions[1] == _DEGREES and radian[0]:
        angles = [(left, f"\\frac{{{right}\\pi}}{{180}}")]
    elif {*dimensions} == {_DEGREES, _CELSIUS}:
        angles = plain
    return (angles, "unit") if mine and theirs else (plain + angles, "different")


def _without_letter(text: str, other: str) -> str:
    r"""\frac{37}{4} m beside a bare number: with a space between, the letter is a unit."""
    match = _SPACED_LETTER.fullmatch(text)
    return match[1] if match and parse_number(match[1]) and parse_number(other) else text


def _scaled(text: str, factor: Fraction) -> str:
    number = parse_number(text)
    if number is None:
        return f"\\frac{{{factor.numerator} \\cdot ({text})}}{{{factor.denominator}}}"
    value = number.value * factor
    return str(value.numerator) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
