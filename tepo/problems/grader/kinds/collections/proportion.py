"""Ratios a : b : c."""

import re

from tepo.problems.grader.kinds.collections.sequence import DOTS
from tepo.problems.grader.kinds.numbers.number import parse_number
from tepo.problems.grader.kinds.protocol import Comparison
from tepo.problems.grader.text.brackets import cut

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
    if terms or given:
        return _as_fraction(terms or given or [], answer if terms else gold, compare)
    return None


def _as_fraction(terms: list[str], other: str, compare: Comparison) -> bool | None:
    """2:3 beside 2/3; not 4:6 beside 2/3."""
    number, parts = parse_number(other), [parse_number(term) for term in terms]
    if len(parts) > 2:  # no number is a ratio of three, though a parser may read it as a chain of divisions
        return compare.differ("ratio")
    if number is None or not all(parts):
        return compare.differ("ratio") if all(parts) and _ARITHMETIC.fullmatch(other) else None
    pair = tuple(part.value for part in parts if part)
    return pair == (number.value.numerator, number.value.denominator) or compare.differ("ratio")
