"""Words around and inside amounts: 3 million, 2 hours 30 minutes, 1 in 4, all real numbers except 2."""

import re
from fractions import Fraction
from itertools import pairwise

from tepo.problems.grader.text.remarks import bounded, unquantified, without_remarks
from tepo.problems.grader.text.units import known, parse_unit

_CHANCE = re.compile(r"(\d+) ?(?:\\text\{(?:in|out of)\}|in|out of) ?(\d+)")
_MAGNITUDE = re.compile(
    r"(?<![\d.,])((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)"
    r" ?(?:(\\text\{) ?)?(hundred|thousand|million|billion|trillion)s?\b(?(2) ?([^{}]*)\})"
)
_AND = re.compile(r" ?,? ?(?:\\text\{,? ?and\}|\band\b) ?")
_COUNTED = re.compile(r"(?<=\d) ?\\text\{([a-zA-Z ]+?),? (and|or)\}(?= ?\d)")
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_BRACED = re.compile(r"(\\(?:max|min|gcd|lcm)) ?\\\{([^{}]*)\\\}")
_EXCEPT = re.compile(
    r"^\\text\{(?:all |any |the )?(?:real numbers|reals)(?: [a-z])?"
    r" (?:except|other than|but|excluding)(?: for)?\} ?(.+)$"
)
_SUCH_THAT = re.compile(r"^(\\\{[^:|]*)(?<!\\)[:|]([^:|]*\\\})$")
_PART = r"(\d+(?:\.\d+)?) ?(?:\\text\{ ?([a-zA-Z. ]+?),?(?: and)? ?\}|([a-zA-Z]+)\.?)"
_ONE_PART, _SEVERAL_PARTS = re.compile(_PART), re.compile(rf"{_PART}(?: ?,? ?(?:\\text\{{,? ?and\}}|and)? ?{_PART})+")


def words_as_notation(text: str) -> str:
    """Words around and inside amounts: 3 million, 2 hours 30 minutes, 1 in 4, "the value is",
    remarks in parentheses."""
    text = _COUNTED.sub(r"\\text{\1} \\text{\2}", _SUCH_THAT.sub(r"\1\\mid \2", text))
    text = _BRACED.sub(r"\1(\2)", unquantified(text))
    if excepted := _EXCEPT.match(text):
        return f"\\mathbb{{R}} \\setminus \\{{{re.sub(_AND, ', ', excepted[1])}\\}}"
    text = bounded(_MAGNITUDE.sub(_written_out, without_remarks(text)))
    chance = _CHANCE.fullmatch(text)
    return f"\\frac{{{chance[1]}}}{{{chance[2]}}}" if chance else one_amount(text) or text


def _written_out(match: re.Match[str]) -> str:
    """3.2 million as 3200000, the unit kept."""
    units, _, decimals = match[1].replace(",", "").partition(".")
    power = _POWERS[match[3]]
    if len(decimals) > power:
        return match.group()
    number = (units + decimals.ljust(power, "0")).lstrip("0") or "0"
    return f"{number} \\text{{{match[4]}}}" if match[4] else number


def one_amount(text: str) -> str | None:
    r"""2 \text{hours} 30 \text{minutes} as \frac{5}{2}\text{hours}: parts of one dimension,
    each unit smaller than the one before. None for anything else."""
    if not _SEVERAL_PARTS.fullmatch(text):
        return None
    parts = [(Fraction(match[1]), match[2] or match[3]) for match in _ONE_PART.finditer(text)]
    units = [parse_unit(word) for _, word in parts if known(word)]
    sizes = [unit.factor for unit in units if unit and unit.dimension == (units[0] and units[0].dimension)]
    if len(sizes) < len(parts) or any(small >= large for large, small in pairwise(sizes)):
        return None
    total = sum((count * size for (count, _), size in zip(parts, sizes, strict=True)), Fraction(0)) / sizes[0]
    return f"\\frac{{{total.numerator}}}{{{total.denominator}}}\\text{{{parts[0][1]}}}"
