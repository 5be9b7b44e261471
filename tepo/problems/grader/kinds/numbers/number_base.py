"""Numbers with their base written: 101_2, 52 base 8."""

import re

from tepo.problems.grader.kinds.numbers.number import parse_number
from tepo.problems.grader.kinds.protocol import Comparison
from tepo.problems.grader.text.split import TEXT

_BASE_WORDS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12,
    "sixteen": 16,
}  # fmt: skip
_BASE_NAME = "-?\\d+|" + "|".join(_BASE_WORDS)
_BASE = re.compile(
    r"\(?((?=[0-9A-Za-z]*\d)[0-9A-Za-z]+|[A-F]+|[a-f]{2,})\)? ?"
    rf"(?:_ ?\{{? ?\(?({_BASE_NAME})\)? ?\}}?|\(? ?(?:in )?base[ -]?({_BASE_NAME}) ?\)?)"
)


def number_in_base(text: str) -> tuple[str, int] | None:
    """(digits, base) of a number with its base written."""
    if "_" not in text and "base" not in text:
        return None
    plain = TEXT.sub(r"\1", text)
    match = _BASE.fullmatch(plain)
    if not match:
        return None
    name = match[2] or match[3]
    base = _BASE_WORDS.get(name) or int(name)
    digits = match[1].upper()
    if not 2 <= abs(base) <= 36 or any(int(digit, 36) >= abs(base) for digit in digits):
        return None
    return digits.lstrip("0") or "0", base


def same_in_base(gold: str, answer: str, compare: Comparison) -> bool | None:
    """Bases must agree where both are written; an answer may leave the gold's base out, but not add one."""
    left, right = number_in_base(gold), number_in_base(answer)
    if left and right:
        return left == right or compare.differ("base")
    if left:
        plain = re.sub(r"[ ,]|\\text\{([^{}]*)\}", r"\1", answer).upper()
        return (plain.lstrip("0") or "0") == left[0] or compare.differ("base")
    number = parse_number(gold) if right else None
    if not right or number is None:
        return None
    return (right[1] == 10 and number.value == int(right[0])) or compare.differ("base")
