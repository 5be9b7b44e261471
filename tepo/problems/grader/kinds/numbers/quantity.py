r"""Quantities, numbers with a unit, per cent sign or currency: `8 \text{ inches}^2`, `\$36`, `62.5\%`, `9 km/h`."""

import re
from collections.abc import Callable
from fractions import Fraction

from tepo.problems.grader.kinds.numbers.number import parse_number
from tepo.problems.grader.text.split import TEXT
from tepo.problems.grader.text.units import Unit, known, parse_unit

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


def quantity(text: str, *, letters: bool = False) -> tuple[str, Unit | None]:
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
    unit = parse_unit(TEXT.sub(r" \1 ", tail)) if _is_unit(tail, letters=letters) else None
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


def _is_unit(tail: str, *, letters: bool) -> bool:
    """A lone bare letter and short unknown bare words are variables;
    what stands in `\\text{}` or is in the table is a unit."""
    if "\\text" in tail or "^{\\circ}" in tail or "%" in tail:
        return True
    words = re.findall(r"[a-zA-Z$¢]+", tail)
    if len(words) == 1 and len(words[0]) == 1:
        return words[0] in "$¢" or (letters and known(words[0]) is not None)
    return all(known(word) or (len(word) >= 3 and len(words) <= 4) or word.lower() == "of" for word in words)


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
    if mine.name or theirs.name:
        return mine.name == theirs.name and leaf(left, right), "unit"
    if {mine, theirs} == _POUNDS:
        return leaf(left, right), "unit"
    if mine.dimension != theirs.dimension:
        return _angles(left, mine, right, theirs, leaf), "unit"
    return leaf(left, right if mine.factor == theirs.factor else _scaled(right, theirs.factor / mine.factor)), "unit"


def _without_letter(text: str, other: str) -> str:
    r"""\frac{37}{4} m beside a bare number: with a space between, the letter is a unit."""
    match = _SPACED_LETTER.fullmatch(text)
    return match[1] if match and parse_number(match[1]) and parse_number(other) else text


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
