"""Choices of a user's own rows: found, listed below the problem with letters, and the gold as a letter."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

from tepo.common.errors import UserError
from tepo.problems.grader.extraction import gold_answers
from tepo.problems.own_data.golds import final_answer
from tepo.problems.own_data.statements import PICTURE, spelled, structure
from tepo.problems.rows import text_of

NAMES = ("choices", "options", "answer_choices", "multiple_choice", "candidates")
_LETTERED = re.compile(r"(option|choice|answer|opt|op)([a-j])")
_NUMBERED = re.compile(r"(option|choice|opt|ending)(\d)")
_BARE = re.compile(r"\s*()([A-J])\s*")  # a and b may be the operands of a sum
_LABELS = ("label", "labels", "key", "letter", "id", "option")
_TEXTS = ("text", "texts", "value", "content", "choice", "answer")
_MARK = re.compile(r"\s*\(?([A-Za-z])\s*[).:]\s*")  # before a choice that brings its letter: (A) 5, b. 6
_BETWEEN = re.compile(r"(?:^|[\s,;])\(?([A-Za-z])\s*[).:]\s*")
_LETTER = re.compile(r"\(?([A-Za-z0-9])(?:\)|\.|:|$)\s*(.*)", re.DOTALL)


class Choice(NamedTuple):
    """A choice. letter: as it is listed; label: of its row, where it has one."""

    letter: str
    label: str
    text: str


def choice_columns(columns: Sequence[Any]) -> tuple[str, ...]:
    """The columns that hold choices: one with all of them, or one for each (A, B, C, D; option1, option2); none."""
    by_name = {spelled(column): column for column in reversed(columns)}
    for name in NAMES:
        if spelled(name) in by_name:
            return (by_name[spelled(name)],)
    for pattern, firsts in ((_BARE, "A"), (_LETTERED, "a"), (_NUMBERED, "01")):
        by_prefix: dict[str, dict[str, str]] = {}
        for column in columns:
            if match := pattern.fullmatch(column if pattern is _BARE else spelled(column)):
                by_prefix.setdefault(match[1], {})[match[2]] = column
        for by_end in by_prefix.values():
            ends = "".join(sorted(by_end))
            if len(ends) > 1 and any(
                ends == "".join(map(chr, range(ord(first), ord(first) + len(ends)))) for first in firsts
            ):
                return tuple(by_end[end] for end in ends)
    return ()


def choices_of(cells: Mapping[str, Any]) -> tuple[Choice, ...]:
    """The choices in the cells of `choice_columns`; none where there are none. Raises ValueError for what is no list of
    texts."""
    pairs = [(spelled(column)[-1], value) for column, value in cells.items()]
    if len(cells) == 1:
        pairs = list(_pairs(structure(*cells.values())))
    pairs = [(label, value) for label, value in pairs if value is not None and str(value).strip()]
    if any(isinstance(value, bytes | Mapping) for _, value in pairs):
        raise ValueError(PICTURE)
    if len(pairs) == 1:  # as text of NumPy, which has no commas
        raise ValueError("with a single choice")
    if len(pairs) > len(ascii_uppercase):
        raise ValueError(f"with more than {len(ascii_uppercase)} choices")
    labels, texts = [label.strip() for label, _ in pairs], [text_of(value, "a choice").strip() for _, value in pairs]
    if not any(labels):
        labels, texts = _marked(texts)
    lettered = len(set(labels)) == len(labels) and all(len(label) == 1 and label.isalpha() for label in labels)
    return tuple(map(Choice, map(str.upper, labels) if lettered else ascii_uppercase, labels, texts))


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    """Label and value of each choice in a cell; a label may be empty."""
    if value is None or value == "":
        return
    if isinstance(value, str):
        parts = _BETWEEN.split(value.strip())
        letters = "".join(parts[1::2]).upper()
        if parts[0].strip() or len(letters) < 2 or not ascii_uppercase.startswith(letters):
            raise ValueError("whose choices are no list")
        yield from zip(parts[1::2], (part.strip().strip(",;") for part in parts[2::2]), strict=True)
    elif isinstance(value, Mapping):
        texts = next((value[key] for key in _TEXTS if isinstance(value.get(key), list)), None)
        labels = next((value[key] for key in _LABELS if isinstance(value.get(key), list)), None)
        if texts is None:  # {"A": …, "B": …}
            labels, texts = list(value), list(value.values())
        labels = labels or [""] * len(texts)
        if len(labels) != len(texts):
            raise ValueError("whose choices are no list")
        yield from zip(map(str, labels), texts, strict=True)
    elif isinstance(value, list):
        for choice in value:
            if isinstance(choice, Mapping) and (key := next((key for key in _TEXTS if key in choice), None)):
                yield next((str(choice[label]) for label in _LABELS if label in choice), ""), choice[key]
            else:
                yield "", choice
    else:
        raise ValueError("whose choices are no list")


def _marked(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Labels and texts of choices that bring their letters themselves, as `A) 21`."""
    marks = [_MARK.match(text) for text in texts]
    letters = "".join(mark[1] for mark in marks if mark).upper()
    if letters != ascii_uppercase[: len(texts)]:
        return [""] * len(texts), list(texts)
    return list(letters), [text[mark.end() :] for text, mark in zip(texts, marks, strict=True) if mark]


def with_choices(statement: str, choices: Sequence[Choice]) -> str:
    """A statement with its choices below it, a line each; as it is where it lists them itself."""
    if all(re.search(rf"\b{choice.letter}\s*[).:]", statement) and choice.text in statement for choice in choices):
        return statement
    return "\n".join([f"{statement}\n", *(f"{choice.letter}. {choice.text}" for choice in choices)])


_READINGS = ("its letter", "its text", "its number, counted from 0", "its number, counted from 1")


def letters(rows: Sequence[tuple[str, str, tuple[Choice, ...]]], where: str) -> list[tuple[str, str]]:
    """The letter of the right choice in each row, and what of it the answer is (`_READINGS`); both empty where it is
    none of its choices. rows: name, answer and choices of each.

    The whole set decides how answers are read. Raises UserError where two readings explain as many rows and differ in
    one: a few numbers may count from 0 or from 1."""
    readings = [_readings(answer, choices) for _, answer, choices in rows]
    times = Counter(reading for by_reading in readings for reading in by_reading)
    most = max(times.values(), default=0)
    likely = [reading for reading in _READINGS if times[reading] == most > 0]
    for (name, answer, _), by_reading in zip(rows, readings, strict=True):
        differing = {by_reading[reading]: reading for reading in likely if reading in by_reading}
        if len(differing) > 1:
            can = ", or ".join(f"{letter} ({reading})" for letter, reading in differing.items())
            fix = "write the letters of the right choices into the column of the answers"
            raise UserError(f"{name}: the answer {answer.strip()[:40]!r} can be {can}", where=where, fix=fix)
    result = []
    for by_reading in readings:
        usable = [reading for reading in dict.fromkeys((*likely, *_READINGS[:2])) if reading in by_reading]
        result.append((by_reading[usable[0]], usable[0]) if usable else ("", ""))
    return result


def _readings(answer: str, choices: Sequence[Choice]) -> dict[str, str]:
    """The letter of the choice that an answer names, in each way to read it."""
    by_reading: dict[str, str] = {}
    labels = {choice.label or choice.letter: choice.letter for choice in choices}
    labels |= {choice.letter: choice.letter for choice in choices}
    texts = Counter(choice.text.casefold() for choice in choices)
    by_text = {choice.text.casefold(): choice.letter for choice in choices if texts[choice.text.casefold()] == 1}
    for text in _spellings(answer):
        if text.casefold() in by_text:
            by_reading.setdefault(_READINGS[1], by_text[text.casefold()])
        if match := _LETTER.fullmatch(text):
            letter = labels.get(match[1], labels.get(match[1].upper()))
            choice_text = match[2].strip()
            if letter and (not choice_text or by_text.get(choice_text.casefold()) == letter):
                by_reading.setdefault(_READINGS[0], letter)
        if text.isdecimal() and not any(choice.label.isdecimal() for choice in choices):
            for first in (0, 1):
                if 0 <= int(text) - first < len(choices):
                    by_reading.setdefault(_READINGS[2 + first], choices[int(text) - first].letter)
    return by_reading


def _spellings(answer: str) -> Iterator[str]:
    """An answer as it is, and what is marked as the final one in it."""
    yield answer.strip()
    try:
        final = final_answer(answer).text
    except ValueError:
        return
    for spelling in (final, *gold_answers(final)):
        yield spelling.strip().strip("$*").removesuffix(".").strip()
