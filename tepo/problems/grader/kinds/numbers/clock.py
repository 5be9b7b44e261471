"""Clock times and dates."""

import re

from tepo.problems.grader.kinds.protocol import Comparison
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
    """(month, day, year or None) of a date with its month in letters: March 14, 14th of March, 4 July 1776."""
    if not any(character.isdigit() for character in text) or not any(month[:3] in text.lower() for month in _MONTHS):
        return None
    plain = TEXT.sub(r" \1 ", text)
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


def same_date(gold: str, answer: str, compare: Comparison) -> bool | None:
    """A gold without a year leaves it open."""
    day, given = date(gold), date(answer)
    return day[:2] == given[:2] and day[2] in (None, given[2]) if day and given else None


def same_clock(gold: str, answer: str, compare: Comparison) -> bool | None:
    """Two times of day; one of them is no number and no ratio."""
    clock, shown = clock_time(gold), clock_time(answer)
    if clock and shown:
        return same_time(clock, shown)
    if any(moment and ":" in text and (moment[3] or ":0" in text) for moment, text in ((clock, gold), (shown, answer))):
        return compare.differ("clock time")
    return None
