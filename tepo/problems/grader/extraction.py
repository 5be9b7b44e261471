r"""The final answer in a response: the last complete \boxed{}, and nothing else unless a fallback is asked for;
and the answers that a gold accepts, as its source writes it: boxed, delimited, in a sentence, with alternatives."""

import re
from collections.abc import Sequence
from functools import lru_cache

from tepo.problems.grader.brackets import UNESCAPED_BRACES, closing

_BOX = re.compile(r"\\(?:frame|[fd])?box(?:ed)?(?![a-zA-Z])")
_NAME = r"(?P<name>[a-zA-Z])(?:_\{?\w\}?)?\s*=\s*\$*\s*"
_NAMED = re.compile(_NAME + "$")
_LIST_GAP = re.compile(
    r"(?:\s|\$|\\[()\[\]]|\\[,;!: ]|\\q?quad|~|\*\*|(?P<join>,|;|\\text\s*\{\s*(?:and|or)\s*\}|\band\b|\bor\b))*(?:"
    + _NAME
    + ")?"
)
_COMMAND = re.compile(r"\\[a-zA-Z]+(?:\s*\{[^{}]*\})*")
_GAP_CHARS = 60
_PHRASE = re.compile(r"answer\s*(?:is|:|=)\s*:?\s*|(?<!#)####(?!#)\s*", re.IGNORECASE)
_HOPE = re.compile(r"\s*I hope it is correct\.?\s*$")
_MATHS = re.compile(r"\\\(.+?\\\)|\\\[.+?\\\]|(?<!\\)\$\$.+?\$\$|(?<![\\$])\$[^$\n]+(?<!\\)\$", re.DOTALL)
_BOLD = re.compile(r"(?<!\w)\*\*|\*\*(?!\w)")
_VERB = r"\b(?:is|are|was|be|equals?|gives?|get|obtain|have|at|to|there are)\b(?: exactly| precisely| a total of)?"
_STATED = re.compile(rf".*(?:{_VERB}|=) ?([-+(\[{{\\$\d][^.!?\n]*(?:\.\d[^.!?\n]*)*)[.!]?\s*$", re.DOTALL)
"""What a sentence without formulas ends with: … the probability is 3/7."""
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
BARE_CHARS = 400


class NoAnswer(Exception):
    """The response has no answer; the message is the reason given in the verdict."""


def extract_answer(response: str, fallbacks: Sequence[str] = ()) -> str:
    """The answer as written, without its box. Several boxes are joined with commas only when the text lists them
    explicitly (nothing between them but separators and a comma, semicolon, "and" or "or"). Raises NoAnswer: "no
    answer", "empty box" or "unclosed box" (an earlier complete box does not count then)."""
    spans = [match.span() for match in _BOX.finditer(response)]
    if not spans:
        return _without_box(response, fallbacks)
    boxes = _outermost(response, spans)
    start, _, content = boxes[-1]
    answers = [content]
    for previous in reversed(boxes[:-1]):
        gap = _LIST_GAP.fullmatch(response, previous[1], start) if 0 < start - previous[1] <= _GAP_CHARS else None
        # $x = \boxed{1}$ or $x = \boxed{2}$
        before = _NAMED.search(response, max(0, previous[0] - _GAP_CHARS), previous[0])
        if not gap or not gap["join"] or (gap["name"] and (before is None or before["name"] != gap["name"])):
            break
        answers.append(previous[2])
        start = previous[0]
    answers = [unwrap_box(answer) for answer in reversed(answers)]
    if not answers[-1].strip(" \t\r\n$~."):
        raise NoAnswer("empty box")
    return answers[-1] if len(answers) == 1 else ", ".join(answer for answer in answers if answer.strip())


def unwrap_box(text: str) -> str:
    r"""The content of a text that is nothing but a box (also a box in a box); other text as it is."""
    while match := _BOX.match(stripped := text.strip()):
        try:
            stop, content = _content(stripped, match.end())
        except NoAnswer:
            break
        if stop != len(stripped):
            break
        text = content
    return text


def _outermost(response: str, spans: list[tuple[int, int]]) -> list[tuple[int, int, str]]:
    """The last boxes that are not inside another one, as (start, stop, content). Only as many as an explicit list may
    hold are opened, from the end, so thousands of boxes cost nothing."""
    opened: list[tuple[int, int, str]] = []
    for start, after in spans[-40:]:
        if opened and start < opened[-1][1]:
            continue
        try:
            stop, content = _content(response, after)
        except NoAnswer:
            if start == spans[-1][0]:
                raise
            continue
        opened.append((start, stop, content))
    return opened


def _content(text: str, position: int) -> tuple[int, str]:
    """(end, content) of the box whose command ends at `position`."""
    while position < len(text) and text[position].isspace():
        position += 1
    if position >= len(text):
        raise NoAnswer("unclosed box")
    if (command := _COMMAND.match(text, position)) and command.end() > position:  # \boxed\frac{7}{8}
        return command.end(), command.group()
    if text[position] != "{":
        word = re.compile(r"[^\s$\\{},;]+").match(text, position)
        if not word:
            raise NoAnswer("empty box")
        return word.end(), word.group().rstrip(".")
    stop = closing(text, position, UNESCAPED_BRACES)
    if stop is None:
        raise NoAnswer("unclosed box")
    return stop + 1, text[position + 1 : stop]


def _without_box(response: str, fallbacks: Sequence[str]) -> str:
    tail = _BOLD.sub("", response.rstrip()[-4 * BARE_CHARS :]).strip()
    for name in fallbacks:
        if name == "phrase":
            matches = list(_PHRASE.finditer(tail))
            if matches:
                answer = _HOPE.sub("", tail[matches[-1].end() :]).strip().split("\n")[0].strip()
                if answer:
                    return answer
        elif name == "formula" and len(_WORD.findall(_MATHS.sub(" ", tail))) > 3:
            matches = list(_MATHS.finditer(tail))
            if matches:
                return matches[-1].group()
        elif name == "bare" and tail and len(response.strip()) <= BARE_CHARS:
            stated = _STATED.search(tail) if len(_WORD.findall(tail)) > 2 else None
            return stated[1] if stated else tail
    raise NoAnswer("no answer")


_OR = re.compile(r"\s+OR\s+")
_GOLD_FORMULA = re.compile(r"\\\((.+?)\\\)|\\\[(.+?)\\\]|(?<!\\)\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$", re.DOTALL)
_GOLD_WORD = re.compile(r"(?<!\\)\b[a-zA-Z]{2,}\b")
_GOLD_PHRASE = re.compile(r"(?:[Tt]he )?(?:[Ff]inal )?[Aa]nswer(?: is:?|:) +(.+)", re.DOTALL)
_FINAL = re.compile(r"####\s*(.+)\s*\Z")


@lru_cache(maxsize=50_000)
def gold_answers(gold: str) -> tuple[str, ...]:
    """The answers a gold accepts: its box, the last formula of a sentence, both sides of an OR, or the text itself."""
    if final := _FINAL.search(gold):
        return (final[1],)
    if _BOX.search(gold):
        try:
            return (extract_answer(gold),)
        except NoAnswer:
            return (gold,)
    if _OR.search(gold):
        return tuple(part for side in _OR.split(gold) for part in gold_answers(side.strip()))
    if phrase := _GOLD_PHRASE.fullmatch(gold):
        return gold_answers(phrase[1])
    formulas = [next(part for part in match if part) for match in _GOLD_FORMULA.findall(gold)]
    if formulas and len(_GOLD_WORD.findall(_GOLD_FORMULA.sub(" ", gold))) >= 4 and "where" not in gold:
        return (formulas[-1],)
    return (gold,)
