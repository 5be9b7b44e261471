r"""Answers with a notation of their own: clock times, ratios, numbers in another base, elided sequences."""

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from tepo.problems.grader.kinds.number import parse_number
from tepo.problems.grader.text.brackets import cut

_HALF = r"([ap])\.? ?m\.?"
_TIME = re.compile(rf"(\d{{1,2}}):(\d{{2}})(?::(\d{{2}}))? ?(?:{_HALF})?|(\d{{1,2}}) ?{_HALF}", re.IGNORECASE)
_ZONE = re.compile(r" ?(?:in the )?(morning|afternoon|evening|noon|midnight)$", re.IGNORECASE)
_TO = re.compile(r"(\d+) ?(?:\\text\{to\}|to) ?(\d+)")
_COLON = re.compile(":")
_BASE_WORDS = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "twelve": 12,
    "sixteen": 16,
}
_BASE_NAME = "-?\\d+|" + "|".join(_BASE_WORDS)
_BASE = re.compile(
    r"\(?((?=[0-9A-Za-z]*\d)[0-9A-Za-z]+|[A-F]+|[a-f]{2,})\)? ?"
    rf"(?:_ ?\{{? ?\(?({_BASE_NAME})\)? ?\}}?|\(? ?(?:in )?base[ -]?({_BASE_NAME}) ?\)?)"
)
_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" if name != "may" else name for name in _MONTHS)
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_DATE = re.compile(rf"(?:({_MONTH})\.? {_DAY}|(?:the )?{_DAY}(?: of)? ({_MONTH})\.?)(?:,? ?(\d{{4}}))?", re.IGNORECASE)
DOTS = "\\ldots"


def time(text: str) -> tuple[int, int, int, str] | None:
    """(hour, minute, second, "a", "p" or "") of a clock time."""
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1", text)
    plain = re.sub(r" +", " ", plain).strip()
    if plain.lower() in ("noon", "midnight"):
        return (12, 0, 0, "p" if plain.lower() == "noon" else "a")
    half = ""
    zone = _ZONE.search(plain)
    if zone:
        half, plain = ("a" if zone[1].lower() in ("morning", "midnight") else "p"), plain[: zone.start()]
    match = _TIME.fullmatch(f"{plain}:00" if zone and plain.isdigit() else plain)
    if not match:
        return None
    hour, minute = int(match[1] or match[5]), int(match[2] or 0)
    if hour > 24 or minute > 59:
        return None
    return hour, minute, int(match[3] or 0), (match[4] or match[6] or half).lower()


def date(text: str) -> tuple[str, int, str | None] | None:
    """(month, day, year or None) of a date with its month in letters: March 14, 14th of March, 4 July 1776."""
    if not any(character.isdigit() for character in text) or not any(month[:3] in text.lower() for month in _MONTHS):
        return None
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text)
    match = _DATE.fullmatch(re.sub(r" +", " ", plain).replace(" ,", ",").strip())
    if not match:
        return None
    return (match[1] or match[4])[:3].lower(), int(match[2] or match[3]), match[5]


def same_time(gold: tuple[int, int, int, str], answer: tuple[int, int, int, str]) -> bool:
    """Equal on the clock; a missing a.m./p.m. matches either, 15:30 is 3:30 p.m."""
    if gold[1:3] != answer[1:3]:
        return False
    if (gold[3] and answer[3]) or max(gold[0], answer[0]) > 12:
        return _of_day(gold) == _of_day(answer)
    return gold[0] == answer[0]


def _of_day(clock: tuple[int, int, int, str]) -> int:
    hour = clock[0] % 24
    if clock[3] and hour <= 12:
        hour = hour % 12 + (12 if clock[3] == "p" else 0)
    return hour


def ratio(text: str) -> list[str] | None:
    """The terms of a ratio a : b : c."""
    match = _TO.fullmatch(text)
    if match:
        return [match[1], match[2]]
    if ":" not in text or DOTS in text or "=" in text or "," in text:
        return None
    terms, colons = cut(text, _COLON)
    return terms if colons and all(terms) else None


def based(text: str) -> tuple[str, int] | None:
    """(digits, base) of a number with its base written."""
    if "_" not in text and "base" not in text:
        return None
    plain = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    match = _BASE.fullmatch(plain)
    if not match:
        return None
    name = match[2] or match[3]
    base = _BASE_WORDS.get(name) or int(name)
    digits = match[1].upper()
    if not 2 <= abs(base) <= 36 or any(int(digit, 36) >= abs(base) for digit in digits):
        return None
    return digits.lstrip("0") or "0", base


@dataclass(frozen=True, slots=True)
class Progression:
    """first, first+step (or first*step) … up to last; last None when it goes on."""

    kind: str
    first: Fraction
    step: Fraction
    last: Fraction | None

    def terms(self, limit: int = 200) -> list[Fraction] | None:
        """All terms, None when there are more than `limit`."""
        values, value = [self.first], self.first
        if self.last is None:
            return None
        while value != self.last:
            value = value + self.step if self.kind == "sum" else value * self.step
            values.append(value)
            if len(values) > limit:
                return None
        return values


def progression(items: list[str]) -> Progression | None:
    """The arithmetic or geometric progression a list with one elision means, if its written terms fit one."""
    if items.count(DOTS) != 1:
        return None
    cut = items.index(DOTS)
    numbers = [parse_number(item) for item in items if item != DOTS]
    if cut < 2 or any(number is None for number in numbers):
        return None
    values = [number.value for number in numbers if number]
    head, tail = values[:cut], values[cut:]
    step = head[1] - head[0]
    runs = all(b - a == step for part in (head, tail) for a, b in pairwise(part))
    if step and runs and all(_reaches(value, head, step) for value in tail):
        return Progression("sum", head[0], step, tail[-1] if tail else None)
    if cut >= 3 and all(head):
        factor = head[1] / head[0]
        if abs(factor) not in (0, 1) and all(b == a * factor for a, b in pairwise(head)):
            found = Progression("product", head[0], factor, tail[-1] if tail else None)
            return found if not tail or _geometric(found, tail) else None
    return None


def _reaches(value: Fraction, head: list[Fraction], step: Fraction) -> bool:
    count = (value - head[-1]) / step
    return count.denominator == 1 and count > 0


def _geometric(found: Progression, tail: list[Fraction]) -> bool:
    value = found.first
    for _ in range(200):
        value *= found.step
        if value == tail[-1]:
            return True
        if abs(value) > abs(tail[-1]) and abs(found.step) > 1:
            return False
    return False
