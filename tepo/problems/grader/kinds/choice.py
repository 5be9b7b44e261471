"""Choices: (C), option B, several letters, a letter with its value behind it."""

import re

from tepo.problems.grader.kinds.numbers.number import parse_number
from tepo.problems.grader.kinds.protocol import Comparison
from tepo.problems.grader.text.split import TEXT
from tepo.problems.grader.text.units import HEDGES

_CHOICE = re.compile(r"\(? ?(?P<letter>[A-Za-z]) ?\)?[.:]?")
_CHOSEN = re.compile(
    r"(?:\\text\{ ?\(?([A-Z])\)? ?[.:]? ?\}|\(([A-Z])\)|([A-Z])[.:)])(?:\\text\{\.\}|[.:,-])?\s*(?P<rest>.*)", re.DOTALL
)
_ANOTHER = re.compile(
    r"(?:\\text\{ ?)?(?:[/&;,]|[-+] ?\(?[A-H]\b|\([A-Ha-h]\)|(?:is|isn't|are|and|or|but|if|only if|wrong|incorrect"
    rf"|(?:because|since)\b.*\b(?:{HEDGES}))\b|unless|except|not (?=\\?\(?[A-Z\d\\]|\}})|\\(?:lor|land|vee|wedge)\b).*"
    r"|(?!(?:\\text\{ ?)?(?:because|since)\b)"
    r".*(?<![a-zA-Z}\\])(?:\([A-H]\)|[A-H][.:)]|\\text\{ ?\(?[A-H]\)?[.:]? ?\}).*"
    r"|.*\b(?:or|and)\b ?\}? ?[A-H]\b.*|[A-H](?: only)?",
    re.DOTALL,
)
"""What stands behind an option and is no value: another option, or a word that takes this one back."""
_OPTIONS = re.compile(r"[A-H](?:,? ?[A-H])+")
_OPTION = re.compile(r"(?:\\text\{ ?)?(?i:option|choice|answer|point) ?\}? ?(?=[(A-Z\\])")


def option_letter(text: str) -> tuple[str, bool] | None:
    """(letter, decorated) of a lone option letter; decorated means in parentheses or \\text{}."""
    bare = _OPTION.sub("", TEXT.sub(r"\1", text).strip()).removesuffix(" only")
    match = _CHOICE.fullmatch(bare)
    return (match["letter"], len(text) > 1) if match else None


def option_letters(text: str) -> str | None:
    """The letters of several options, in alphabetical order: ABD of `D, A, B` and of `ABD`. None for anything else,
    and for BDA, which is an order."""
    plain = TEXT.sub(r"\1", text)
    letters = re.findall("[A-H]", plain) if _OPTIONS.fullmatch(plain) else []
    ordered = sorted(set(letters))
    return "".join(ordered) if len(letters) == len(ordered) > 1 and ("," in text or letters == ordered) else None


def option_with_value(text: str) -> tuple[str, str] | None:
    """(letter, rest) of an option with its value behind it: `\\text{(C)} 12`, `C. 12`. None without a value."""
    match = _CHOSEN.fullmatch(_OPTION.sub("", text))
    rest = match["rest"].strip() if match else ""
    return (match[1] or match[2] or match[3], rest) if match and rest and not _ANOTHER.fullmatch(rest) else None


def same_choice(gold: str, answer: str, compare: Comparison) -> bool | None:
    """By their letters; a letter with its value may stand for either."""
    if ("," in gold) != ("," in answer) and (several := option_letters(gold)) and several == option_letters(answer):
        return True
    mine, theirs = option_letter(gold), option_letter(answer)
    if mine and theirs and (mine[1] or theirs[1] or (mine[0] in "ABCDE" and theirs[0].upper() in "ABCDE")):
        return mine[0].upper() == theirs[0].upper()
    picked = option_with_value(answer)
    if picked and mine and (mine[0].isupper() or mine[1]):
        return picked[0] == mine[0].upper()
    if picked and not mine and not option_with_value(gold):
        return compare.same(gold, picked[1])
    if mine and mine[1] and parse_number(answer):
        return False
    stated = option_with_value(gold)
    if stated and theirs:
        return stated[0] == theirs[0].upper()
    if stated and picked:
        return (stated[0] == picked[0] and compare.same(stated[1], picked[1])) or None
    return (stated is not None and compare.same(stated[1], answer)) or None
