r"""Values without sympy: plain numbers exactly, as `Fraction` (integers, decimals, fractions, mixed numbers, powers of
ten, repeating decimals), and simple expressions as floats, to prove that two differ (most wrong answers of a rollout
are refused here, in microseconds), and at 50 digits in the workers, to spare the parser.

The reader of expressions takes sums, products, quotients, powers, \frac, \sqrt, \pi, e, i and single letters (which get
fixed positive values). Anything else, and anything ambiguous, is unknown."""

import cmath
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any

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
_QUOTIENT = re.compile(r"([+-]?)(?:\\frac\{([^{}]+)\}\{([^{}]+)\}|\(?([+-]?[\d.,]+)\)?/\(?([+-]?[\d.,]+)\)?)")
_MIXED = re.compile(r"([+-]?)(\d+)(?: ?\\frac\{(\d+)\}\{(\d+)\}| (\d+)/(\d+))")
_REPEATING = re.compile(
    r"([+-]?)(\d*)\.(\d*)(?:\\(?:overline|bar|overbar|dot)\{?(\d+)\}?|\((\d+)\)|\\dot\{(\d)\}(\d*)\\dot\{(\d)\})(?:\\ldots)?"
)
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
    r"""The number a canonical text is, or None: also 0.1\overline{6}, 0.(3), 0.\dot{1}4285\dot{7}, and 0.333\ldots when
    its digits end in a visible repetition. Never computes a power beyond 10^MAX_EXPONENT."""
    if not text or len(text) > MAX_DIGITS:
        return None
    if text.isdigit() and text.isascii():
        return Exact(Fraction(int(text)))
    mixed = _MIXED.fullmatch(text)
    if mixed is None and re.search(r"\d \d", text):  # 4 2 is not 42; groups of three were joined before
        return None
    text = text.replace(" ", "") if mixed is None else text
    sign = -1 if text.startswith("-") else 1
    if mixed:
        whole, count, parts = (int(figures) for figures in mixed.groups()[1:] if figures)
        return Exact(sign * (whole + Fraction(count, parts))) if parts else None
    if _DECIMAL.fullmatch(text):
        return _decimal(text)
    if match := _TEN.fullmatch(text):
        power = int(match[2] or match[3])
        return Exact(sign * Fraction(10) ** power) if abs(power) <= MAX_EXPONENT else None
    if match := _QUOTIENT.fullmatch(text):
        sign = -1 if match[1] == "-" else 1
        top, bottom = _decimal(match[2] or match[4]), _decimal(match[3] or match[5])
        return Exact(sign * top.value / bottom.value) if top and bottom and bottom.value else None
    match = _REPEATING.fullmatch(text) or _TRAILING.fullmatch(text)
    if not match:
        return None
    integer, decimals, *written = match.groups()[1:]
    if not written:
        periods = (decimals[-length:] for length in range(1, len(decimals) // 2 + 1))
        written = [next((end for end in periods if decimals.endswith(end * (3 if len(end) == 1 else 2))), "")]
    period, shift = "".join(filter(None, written)), 10 ** len(decimals)
    if not period:
        return None
    whole_part = Fraction(int((integer or "0") + decimals), shift)
    return Exact(sign * (whole_part + Fraction(int(period), shift * (10 ** len(period) - 1))))


def _decimal(text: str) -> Exact | None:
    match = _DECIMAL.fullmatch(text)
    sign, mantissa, *powers = match.groups() if match else ("", "")
    power = next((figures for figures in powers if figures), None)
    integer, _, decimals = mantissa.replace(",", "").partition(".")
    if not (integer or decimals) or abs(int(power or 0)) > MAX_EXPONENT:
        return None
    scale = Fraction(10) ** int(power or 0)
    value = Fraction(int(integer + decimals), 10 ** len(decimals)) * scale
    ulp = scale / 10 ** len(decimals) if decimals or power else Fraction(0)
    return Exact(-value if sign == "-" else value, ulp, len((integer + decimals).lstrip("0")))


_TOKEN = re.compile(
    r"\s*(\d+(?:\.\d+)?|\.\d+|\\frac|\\sqrt|\\pi(?![a-zA-Z])|\\cdot(?![a-zA-Z])|\\times(?![a-zA-Z])|\\div(?![a-zA-Z])|[a-zA-Z]|[-+*/^(){}\[\]])"
)
_GAP = 1e-5
"""Relative difference that proves inequality: a decimal with six digits may still round the other side."""

_POINTS = range(4)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_SPREAD = 1e12
"""Terms of one expression that differ more in size hide too much from a comparison at 50 digits."""
_MOST_FIGURES = 30
"""Of a number's figures more would be lost, or compared with rounding errors."""
_MOST_EXPONENT = 1e5
"""Of a tower of powers the next exponent would fill the memory."""


@cache
def sample(point: int, unknown: int) -> str:
    """The value of an unknown at a sample point, 0.4 to 3.4, as fifty decimals. They are drawn: values made by a rule
    are related, and what differs by such a relation would be equal at every point."""
    draw = int.from_bytes(sha256(f"{point} {unknown}".encode()).digest())
    units, decimals = divmod(4 * 10**49 + (3 * 10**50 * draw >> 256), 10**50)
    return f"{units}.{decimals:050d}"


class Unknown(Exception):
    """Not an expression this reader understands for certain."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Numbers to compute with: floats here, mpmath's in the workers."""

    number: Callable[[str], Any]
    sqrt: Callable[[Any], Any]
    pi: Any
    e: Any
    i: Any


FLOATS = Arithmetic(lambda text: complex(float(text)), cmath.sqrt, complex(math.pi), complex(math.e), 1j)
_TROUBLE = (Unknown, OverflowError, ZeroDivisionError, ValueError, RecursionError)


def differ(gold: str, answer: str) -> bool:
    """True when both are understood and have clearly different values at some positive point."""
    try:
        for point in _POINTS[:2]:
            left, right = _Reader(gold, point, FLOATS), _Reader(answer, point, FLOATS)
            first, second = left.value(), right.value()
            scale = max(left.largest, right.largest, abs(first), abs(second))
            if not math.isfinite(scale):
                return False
            if abs(first - second) > _GAP * max(abs(first), abs(second)) and abs(first - second) > 1e-9 * scale:
                return True
    except _TROUBLE:
        return False
    return False


def approximate(text: str) -> float | None:
    """The real value of an expression without letters, None where it is not understood."""
    try:
        reader = _Reader(text, 0, FLOATS)
        value = reader.value()
    except _TROUBLE:
        return None
    return value.real if math.isfinite(value.real) and not value.imag and not reader.letters(0) else None


def same(gold: str, answer: str, arithmetic: Arithmetic, digits: int) -> bool:
    """Equal at four points to nearly `digits` digits. False says nothing: the values differ, or the comparison would
    not prove equality (unknown notation, roots of letters, whose sign matters, terms of very different size, values
    that may be integers of more digits)."""
    most = 10.0 ** (digits - 15)
    try:
        for point in _POINTS:
            left, right = _Reader(gold, point, arithmetic, strict=True), _Reader(answer, point, arithmetic, strict=True)
            first, second = left.value(), right.value()
            largest, smallest = max(left.largest, right.largest), min(left.smallest, right.smallest)
            if not 0 < largest < min(_SPREAD * smallest, most) or abs(first - second) > largest * 10.0 ** (8 - digits):
                return False
    except _TROUBLE:
        return False
    return True


class _Reader:
    """Recursive descent over the tokens of one expression. `largest` and `smallest` are the extreme magnitudes met;
    differences far below the largest may be rounding. `strict` refuses roots of letters."""

    def __init__(self, text: str, point: int, arithmetic: Arithmetic, *, strict: bool = False):
        matches = list(_TOKEN.finditer(text))
        if "".join(match.group() for match in matches) != text.rstrip():
            raise Unknown
        self._tokens = [match[1] for match in matches]
        self._index, self._point, self._with, self._strict = 0, point, arithmetic, strict
        self.largest, self.smallest = 0.0, math.inf

    def value(self) -> Any:
        return self._until("")

    def _peek(self) -> str:
        return self._tokens[self._index] if self._index < len(self._tokens) else ""

    def _next(self, *expected: str) -> str:
        token = self._peek()
        if expected and token not in expected:
            raise Unknown
        self._index += 1
        return token

    def _keep(self, value: Any) -> Any:
        size = abs(value)
        self.largest = max(self.largest, size)
        if size:
            self.smallest = min(self.smallest, size)
        return value

    def _sum(self) -> Any:
        sign = -1 if self._peek() in ("+", "-") and self._next() == "-" else 1
        total = sign * self._product()
        while self._peek() in ("+", "-"):
            sign = -1 if self._next() == "-" else 1
            total = self._keep(total + sign * self._product())
        return total

    def _product(self) -> Any:
        """Factors with signs or side by side. After a slash nothing may stand side by side (1/2x), and a number before
        a fraction is a mixed number: both are left to the parser."""
        total, slashed = self._power(), False
        while True:
            token, before = self._peek(), self._tokens[self._index - 1]
            if token in ("\\cdot", "\\times", "*"):
                self._next()
                total = self._keep(total * self._power())
            elif token in ("/", "\\div"):
                self._next()
                total, slashed = self._keep(total / self._power()), True
            elif token in ("", "+", "-", ")", "}", "]", "^"):
                return total
            elif (
                slashed
                or (token == "\\frac" and before[-1].isdigit())
                or token[0].isdigit()
                or (token == "(" and before.isalpha())
            ):
                raise Unknown
            else:
                total = self._keep(total * self._power())

    def _power(self) -> Any:
        before = self._index
        base = self._atom()
        if self._peek() != "^":
            return base
        self._next()
        start = self._index
        exponent = self._atom()
        if abs(exponent) > _MOST_EXPONENT:
            raise Unknown
        if self.letters(start) and (base.imag or base.real <= 0):
            raise Unknown  # (-1)^n is meant for integers n
        if self._strict and not self.letters(start) and self.letters(before) and exponent != int(exponent.real):
            raise Unknown
        return self._keep(base**exponent)

    def _until(self, end: str) -> Any:
        value = self._sum()
        self._next(end)
        return value

    def _group(self) -> Any:
        self._next("{")
        return self._until("}")

    def _atom(self) -> Any:
        token = self._next()
        if token in _CLOSING:
            return self._until(_CLOSING[token])
        if token == "\\frac":
            above = self._group()
            return self._keep(above / self._group())
        if token == "\\sqrt":
            degree: Any = self._with.number("2")
            if self._peek() == "[":
                self._next()
                degree = self._until("]")
            start = self._index
            inside = self._group()
            if (degree != 2 and (inside.imag or inside.real < 0)) or (self._strict and self.letters(start)):
                raise Unknown
            return self._keep(self._with.sqrt(inside) if degree == 2 else inside ** (1 / degree))
        named = {"\\pi": self._with.pi, "e": self._with.e, "i": self._with.i}
        if token in named:
            return self._keep(named[token])
        if token[:1].isdigit() or token[:1] == ".":
            if self._strict and len(token) > _MOST_FIGURES:
                raise Unknown
            return self._keep(self._with.number(token))
        if len(token) == 1 and token.isalpha():
            return self._keep(self._with.number(sample(self._point, ord(token))))
        raise Unknown

    def letters(self, start: int) -> bool:
        """Is there a variable among the tokens read since `start`?"""
        return any(token.isalpha() and token not in "ei" for token in self._tokens[start : self._index])
