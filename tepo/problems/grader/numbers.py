r"""Plain numbers, exactly: integers, decimals, fractions, thousands separators, powers of ten, as `Fraction`."""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_EXPONENT = 400
MAX_DIGITS = 1000

_DIGITS = r"\d+(?:,\d{3})+(?!\d)|\d+"
_DECIMAL = re.compile(rf"([+-]?)((?:{_DIGITS})?(?:\.\d*)?)(?:[eE]([+-]?\d{{1,6}})|(?:\\times|\\cdot|\*)10\^(?:\{{([+-]?\d{{1,6}})\}}|([+-]?\d)))?")
_TEN = re.compile(r"([+-]?)10\^(?:\{([+-]?\d{1,6})\}|(\d))")
_FRACTION = re.compile(r"([+-]?)\\frac\{([+-]?[\d.,]+)\}\{([+-]?[\d.,]+)\}")
_MIXED = re.compile(r"([+-]?)(\d+)\\frac\{(\d+)\}\{(\d+)\}")
_SLASH = re.compile(r"([+-]?[\d.,]+)/([+-]?[\d.,]+)")


@dataclass(frozen=True, slots=True)
class Exact:
    """`value` is exact for what was written; `places` digits stand after the point (0 for integers and fractions, the power
    of ten taken off), `digits` are significant; `decimal` says that a point was written, so the value may be a rounding."""

    value: Fraction
    decimal: bool = False
    ulp: Fraction = Fraction(0)
    digits: int = 0


def parse_number(text: str) -> Exact | None:
    """The number a normalised text (no spaces) is, or None. Never computes a power beyond 10^MAX_EXPONENT."""
    if not text or len(text) > MAX_DIGITS:
        return None
    match = _DECIMAL.fullmatch(text)
    if match:
        return _decimal(match)
    match = _TEN.fullmatch(text)
    if match:
        power = int(match[2] or match[3])
        return Exact(_signed(match[1], Fraction(10) ** power)) if abs(power) <= MAX_EXPONENT else None
    match = _MIXED.fullmatch(text)
    if match and int(match[4]):
        return Exact(_signed(match[1], int(match[2]) + Fraction(int(match[3]), int(match[4]))))
    match = _FRACTION.fullmatch(text)
    if match:
        return _quotient(match[2], match[3], match[1])
    match = _SLASH.fullmatch(text)
    return _quotient(match[1], match[2], "") if match else None


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _decimal(match: re.Match[str]) -> Exact | None:
    sign, mantissa = match[1], match[2].replace(",", "")
    power = int(match[3] or match[4] or match[5] or 0)
    whole, point, places = mantissa.partition(".")
    if not (whole or places) or abs(power) > MAX_EXPONENT:
        return None
    scale = Fraction(10) ** power
    digits = (whole + places).lstrip("0")
    return Exact(_signed(sign, Fraction(int(whole + places), 10 ** len(places)) * scale), bool(point), scale / 10 ** len(places), len(digits))


def _quotient(above: str, below: str, sign: str) -> Exact | None:
    numerator, denominator = _DECIMAL.fullmatch(above), _DECIMAL.fullmatch(below)
    if not numerator or not denominator:
        return None
    top, bottom = _decimal(numerator), _decimal(denominator)
    if top is None or bottom is None or bottom.value == 0:
        return None
    return Exact(_signed(sign, top.value / bottom.value))
