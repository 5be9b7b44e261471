"""Kinds with a notation of their own: clock times, dates, ranges, numbers with their base (101_2), ratios a : b : c."""

import re
from fractions import Fraction

from tepo.problems.grader.kinds.collections.pairing import DOTS
from tepo.problems.grader.kinds.numbers.number import parse_number
from tepo.problems.grader.kinds.protocol import Comparison
from tepo.problems.grader.text.brackets import cut
from tepo.problems.grader.text.split import TEXT

_HALF = r"([ap])\.? ?m\.?"
_TIME = re.compile(rf"(\d{{1,2}}):(\d{{2}})(?::(\d{{2}}))? ?(?:{_HALF})?|(\d{{1,2}}) ?{_HALF}", re.IGNORECASE)
_ZONE = re.compile(r" ?(?:in the )?(morning|afternoon|evening|noon|midnight)$", re.IGNORECASE)
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" if name != "may" else name for name in _MONTHS)
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_DATE = re.compile(rf"(?:({_MONTH})\.? {_DAY}|(?:the )?{_DAY}(?: of)? ({_MONTH})\.?)(?:,? ?(\d{{4}}))?", re.IGNORECASE)
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_FIGURES = re.compile(r"\d{1,18}(?:\.\d{1,18})?")
_DASH = r" ?(?:--?|(?:\\text\{)?\b(?:to|through)\b\}?) ?"
_JOINED = re.compile(rf"{_FIGURES.pattern}(?:{_DASH}{_FIGURES.pattern})+|\d{{1,18}}(?:/\d{{1,18}}){{2,}}")


def clock_time(text: str) -> tuple[int, int, int, str] | None:
    """(hour, minute, second, "a", "p" or "") of a clock time."""
    plain = TEXT.sub(r" \1", text)
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
    """(month, day, year or None) of a date: March 14, 14th of March, 4 July 1776, 1776-07-04."""
    if (iso := _ISO.fullmatch(text)) and 1 <= int(iso[2]) <= 12:
        return _MONTHS[int(iso[2]) - 1][:3], int(iso[3]), iso[1]
    if not any(character.isdigit() for character in text) or not any(month[:3] in text.lower() for month in _MONTHS):
        return None
    plain = TEXT.sub(r" \1 ", text)
    match = _DATE.fullmatch(re.sub(r" +", " ", plain).replace(" ,", ",").strip())
    if not match:
        return None
    return (match[1] or match[4])[:3].lower(), int(match[2] or match[3]), match[5]


def _of_day(clock: tuple[int, int, int, str]) -> int:
    hour = clock[0] % 24
    if clock[3] and hour <= 12:
        hour = hour % 12 + (12 if clock[3] == "p" else 0)
    return hour


def same_date(gold: str, answer: str, compare: Comparison) -> bool | None:
    """A gold without a year leaves it open."""
    day, given = date(gold), date(answer)
    return day[:2] == given[:2] and day[2] in (None, given[2]) if day and given else None


def same_joined(gold: str, answer: str, compare: Comparison) -> bool | None:
    """Ranges, telephone numbers and dates in figures. A gold of bare numbers with a dash between is one of them
    if it goes up (10-12) or has several (555-123-4567); an answer only as 2024-01-05, any other is a subtraction."""
    read = [_FIGURES.findall(text) if _JOINED.fullmatch(text) else [] for text in (gold, answer)]
    parts, given = ([*map(Fraction, figures)] for figures in read)
    if len(parts) > 2 or (parts and parts[0] < parts[1]):
        return parts == given or compare.differ("range")
    return compare.differ("date") if _ISO.fullmatch(answer) else None


def same_clock(gold: str, answer: str, compare: Comparison) -> bool | None:
    """Two times of day; one of them is no number and no ratio."""
    clock, shown = clock_time(gold), clock_time(answer)
    if clock and shown:  # a missing a.m./p.m. matches either, 15:30 is 3:30 p.m.
        of_day = (clock[3] and shown[3]) or max(clock[0], shown[0]) > 12
        same_hour = _of_day(clock) == _of_day(shown) if of_day else clock[0] == shown[0]
        return same_hour and clock[1:3] == shown[1:3]
    if any(moment and ":" in text and (moment[3] or ":0" in text) for moment, text in ((clock, gold), (shown, answer))):
        return compare.differ("clock time")
    return None


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


_TO = re.compile(r"(\d+) ?(?:\\text\{to\}|to) ?(\d+)")
_ARITHMETIC = re.compile(r"(?:[\d\s.+*/^(){}-]|\\(?:frac|cdot|times|div)(?![a-zA-Z]))+")
"""What a parser computes as it computes a chain of divisions: 1/2/3 would be 5:30."""
_COLON = re.compile(":")


def ratio_terms(text: str) -> list[str] | None:
    """The terms of a ratio a : b : c."""
    match = _TO.fullmatch(text)
    if match:
        return [match[1], match[2]]
    if ":" not in text or DOTS in text or "=" in text or "," in text:
        return None
    terms, colons = cut(text, _COLON)
    return terms if colons and all(terms) else None


def same_ratio(gold: str, answer: str, compare: Comparison) -> bool | None:
    terms, given = ratio_terms(gold), ratio_terms(answer)
    if terms and given:
        same = len(terms) == len(given) and all(map(compare.value, terms, given))
        return same or compare.differ("ratio")
    if not terms and not given:
        return None
    other = answer if terms else gold  # 2:3 beside 2/3; not 4:6 beside 2/3
    number, parts = parse_number(other), [parse_number(term) for term in terms or given or []]
    if len(parts) > 2:  # no number is a ratio of three, though a parser may read it as a chain of divisions
        return compare.differ("ratio")
    if number is None or not all(parts):
        return compare.differ("ratio") if all(parts) and _ARITHMETIC.fullmatch(other) else None
    pair = tuple(part.value for part in parts if part)
    return pair == (number.value.numerator, number.value.denominator) or compare.differ("ratio")
