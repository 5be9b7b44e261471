r"""Amounts: numbers with units, per cent signs, degrees and currencies, compared through their leaves."""

import re
from collections.abc import Callable
from fractions import Fraction

from tepo.problems.grader.kinds.number import parse_number
from tepo.problems.grader.kinds.quantity import quantity
from tepo.problems.grader.text.units import Unit, parse_unit

Leaf = Callable[[str, str], bool]
_SPACED_LETTER = re.compile(r"(.+) [msgL]")
_POUNDS = {parse_unit("pound"), parse_unit("lb")}
"""Pounds are money until the other side weighs."""


def same_amount(gold: str, answer: str, leaf: Leaf) -> tuple[bool, str]:
    """(equal, why not). A unit may be missing on one side; two units must agree, converted where the table can."""
    left, mine = quantity(gold)
    right, theirs = quantity(answer)
    if (mine is None) != (theirs is None):  # 8m is eight metres beside 8 \\text{ m}
        left, mine = (left, mine) if mine else quantity(gold, letters=True)
        right, theirs = (right, theirs) if theirs else quantity(answer, letters=True)
    if mine is None and theirs is None:
        left, right = _without_letter(left, right), _without_letter(right, left)
    if (mine is None and theirs is None) or (mine and mine.generic) or (theirs and theirs.generic):
        return leaf(left, right), "different"
    if (mine and mine.is_only("percent")) or (theirs and theirs.is_only("percent")):
        return _percent(left, mine, right, theirs, leaf)
    if mine is None or theirs is None:
        return leaf(left, right) or _angles(left, mine, right, theirs, leaf), "different"
    return _two_units(left, mine, right, theirs, leaf), "unit"


def _without_letter(text: str, other: str) -> str:
    r"""\frac{37}{4} m beside a bare number: with a space between, the letter is a unit."""
    match = _SPACED_LETTER.fullmatch(text)
    return match[1] if match and parse_number(match[1]) and parse_number(other) else text


def _two_units(left: str, mine: Unit, right: str, theirs: Unit, leaf: Leaf) -> bool:
    if mine.name or theirs.name:
        return mine.name == theirs.name and leaf(left, right)
    if {mine, theirs} == _POUNDS:
        return leaf(left, right)
    if mine.dimension != theirs.dimension:
        return _angles(left, mine, right, theirs, leaf)
    return leaf(left, right if mine.factor == theirs.factor else _scaled(right, theirs.factor / mine.factor))


def _angles(left: str, mine: Unit | None, right: str, theirs: Unit | None, leaf: Leaf) -> bool:
    r"""Degrees against radians: 90^\circ is \pi/2, written with \pi or with the word;
    25^\circ is 25 degrees Celsius."""
    if mine and mine.is_only("angle") and _is_radian(theirs, right):
        return leaf(f"\\frac{{{left}\\pi}}{{180}}", right)
    if theirs and theirs.is_only("angle") and _is_radian(mine, left):
        return leaf(left, f"\\frac{{{right}\\pi}}{{180}}")
    return bool(
        mine and theirs and {mine.dimension, theirs.dimension} == {(("angle", 1),), (("temperature-c", 1),)}
    ) and leaf(left, right)


def _is_radian(unit: Unit | None, text: str) -> bool:
    return unit.is_only("angle-rad") if unit else "\\pi" in text


def _percent(left: str, mine: Unit | None, right: str, theirs: Unit | None, leaf: Leaf) -> tuple[bool, str]:
    """50% is 50% and 0.5; it is 50 too when the sign was left out, which a number below 1 cannot mean."""
    if mine and theirs:
        return mine.dimension == theirs.dimension and leaf(left, right), "unit"
    hundredth = Fraction(1, 100)
    if leaf(*((_scaled(left, hundredth), right) if mine else (left, _scaled(right, hundredth)))):
        return True, ""
    number = parse_number(right if mine else left)
    return number is not None and abs(number.value) >= 1 and leaf(left, right), "different"


def _scaled(text: str, factor: Fraction) -> str:
    number = parse_number(text)
    if number is None:
        return f"\\frac{{{factor.numerator} \\cdot ({text})}}{{{factor.denominator}}}"
    value = number.value * factor
    return str(value.numerator) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
