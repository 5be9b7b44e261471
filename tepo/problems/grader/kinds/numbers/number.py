r"""Plain numbers, exactly: integers, decimals, fractions, mixed numbers, powers of ten, repeating decimals,
as `Fraction`."""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

MAX_EXPONENT = 400
MAX_DIGITS = 4000  # Python reads an integer of at most 4,300
GOLD_DIGITS = 6
ANSWER_DIGITS = 9
"""Significant digits of a decimal that may stand for an exact value: a gold's source may have computed it; an answer of
3.14159 or 0.333333 is an approximation."""

_DIGITS = r"\d{1,3}(?:,\d{3})+|\d+"
_MANTISSA = rf"(?:{_DIGITS})?(?:\.\d*)?"
_POWER = r"(?:[eE]([+-]?\d{1,6})|(?:\\times|\\cdot|[xX])10\^(?:\{([+-]?\d{1,6})\}|(\d)))"
_DECIMAL = re.compile(rf"([+-]?)({_MANTISSA}){_POWER}?")
_TEN = re.compile(r"([+-]?)10\^(?:\{([+-]?\d{1,6})\}|(\d))")
_FRACTION = re.compile(r"([+-]?)\\frac\{([^{}]+)\}\{([^{}]+)\}")
_MIXED = re.compile(r"([+-]?)(\d+) ?\\frac\{(\d+)\}\{(\d+)\}|([+-]?)(\d+) (\d+)/(\d+)")
_SLASH = re.compile(r"([+-]?)\(?([+-]?[\d.,]+)\)?/\(?([+-]?[\d.,]+)\)?")
_REPEATING = re.compile(
    r"([+-]?)(\d*)\.(\d*)(?:\\(?:overline|bar|overbar|dot)\{?(\d+)\}?|\((\d+)\)|\\dot\{(\d)\}(\d*)\\dot\{(\d)\})(?:\\ldots)?"
)
_SPACED = re.compile(r"\d \d")
_TRAILING = re.compile(r"([+-]?)(\d*)\.(\d{3,})\\ldots")


@dataclass(frozen=True, slots=True)
class Exact:
    """`value` is exact for what was written. A decimal may be a rounding of something else: `ulp` is one unit of its
    last written digit (0 for integers and fractions) and `digits` how many significant ones it has."""

    value: Fraction
    ulp: Fraction = Fraction(0)
    digits: int = 0

    def rounds(self, other: Fraction, least: int) -> bool:
        """Is this decimal, at its written precision, `other`? `least` significant digits of a rounding or one more of a
        truncation are asked for, so that 0.333 is not 1/3, and 0.9999999 never is 1, which could have been written;
        noise of double precision (1e-13) is let through."""
        difference = abs(self.value - other)
        if self.digits > 1 and self.value.denominator == 1 and self.ulp < 1:  # 1.00000 is no rounding of 1.000001
            return difference == 0
        if not self.ulp or other == 0 or (difference and (other / self.ulp).denominator == 1):
            return difference == 0
        if difference <= abs(other) * Fraction(1, 10**13) and self.digits >= 14:
            return True
        truncated = abs(self.value) <= abs(other) and self.digits > least
        return self.digits >= least and difference <= (self.ulp if truncated else self.ulp / 2)


def same_number(gold: Exact, answer: Exact, relative: Fraction, absolute: Fraction) -> bool:
    """Within the tolerances, or a decimal that rounds the other side; of two decimals only noise is let through."""
    difference = abs(gold.value - answer.value)
    if difference <= max(relative * abs(gold.value), absolute):
        return True
    if gold.ulp and answer.ulp:
        return max(gold.digits, answer.digits) >= 15 and difference <= abs(gold.value) / 10**14
    return answer.rounds(gold.value, ANSWER_DIGITS) or gold.rounds(answer.value, GOLD_DIGITS)


@lru_cache(maxsize=20_000)
def parse_number(text: str) -> Exact | None:
    """The number a canonical text is, or None. Never computes a power beyond 10^MAX_EXPONENT."""
    if not text or len(text) > MAX_DIGITS:
        return None
    if text.isdigit() and text.isascii():
        return Exact(Fraction(int(text)))
    match = _MIXED.fullmatch(text)
    if match:
        sign, integer, above, below = match.groups()[:4] if match[2] else match.groups()[4:]
        return Exact(_signed(sign, int(integer) + Fraction(int(above), int(below)))) if int(below) else None
    if " " in text:
        if _SPACED.search(text):  # 4 2 is not 42; groups of three were joined before
            return None
        text = text.replace(" ", "")
    if match := _DECIMAL.fullmatch(text):
        return _decimal(match)
    if match := _TEN.fullmatch(text):
        power = int(match[2] or match[3])
        return Exact(_signed(match[1], Fraction(10) ** power)) if abs(power) <= MAX_EXPONENT else None
    match = _FRACTION.fullmatch(text) or _SLASH.fullmatch(text)
    if not match:
        return _repeating(text)
    above, below = _DECIMAL.fullmatch(match[2]), _DECIMAL.fullmatch(match[3])
    top, bottom = above and _decimal(above), below and _decimal(below)
    return Exact(_signed(match[1], top.value / bottom.value)) if top and bottom and bottom.value else None


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _decimal(match: re.Match[str]) -> Exact | None:
    sign, mantissa = match[1], match[2].replace(",", "")
    power = int(match[3] or match[4] or match[5] or 0)
    integer, _, decimals = mantissa.partition(".")
    if not (integer or decimals) or abs(power) > MAX_EXPONENT:
        return None
    scale = Fraction(10) ** power
    value = _signed(sign, Fraction(int(integer + decimals), 10 ** len(decimals)) * scale)
    rounded = bool(decimals) or bool(match[3] or match[4] or match[5])
    return Exact(value, scale / 10 ** len(decimals) if rounded else Fraction(0), len((integer + decimals).lstrip("0")))


def _repeating(text: str) -> Exact | None:
    r"""0.1\overline{6}, 0.(3), 0.\dot{1}4285\dot{7}, and 0.333\ldots when its digits end in a visible repetition."""
    match = _REPEATING.fullmatch(text)
    if match:
        period = match[4] or match[5] or match[6] + match[7] + match[8]
        return Exact(_signed(match[1], _period(match[2], match[3], period)))
    match = _TRAILING.fullmatch(text)
    if not match:
        return None
    decimals = match[3]
    for length in range(1, len(decimals) // 2 + 1):
        period = decimals[-length:]
        repeats = 1
        while decimals[: len(decimals) - repeats * length].endswith(period):
            repeats += 1
        if repeats >= (3 if length == 1 else 2):
            return Exact(_signed(match[1], _period(match[2], decimals, period)))
    return None


def _period(integer: str, decimals: str, period: str) -> Fraction:
    shift = 10 ** len(decimals)
    return Fraction(int((integer or "0") + decimals), shift) + Fraction(int(period), shift * (10 ** len(period) - 1))
