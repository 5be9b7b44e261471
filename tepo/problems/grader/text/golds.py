"""Golds as their sources write them: boxed, delimited, inside a sentence, with alternatives, with a brace missing."""

import re
from functools import lru_cache

from tepo.problems.grader.text.extraction import NoAnswer, extract_answer, has_box

_OR = re.compile(r"\s+OR\s+")
_MATHS = re.compile(r"\\\((.+?)\\\)|\\\[(.+?)\\\]|(?<!\\)\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$", re.DOTALL)
_WORD = re.compile(r"(?<!\\)\b[a-zA-Z]{2,}\b")
_PHRASE = re.compile(r"(?:[Tt]he )?(?:[Ff]inal )?[Aa]nswer(?: is:?|:) +(.+)", re.DOTALL)
_FINAL = re.compile(r"####\s*(.+)\s*\Z")


@lru_cache(maxsize=50_000)
def gold_answers(gold: str) -> tuple[str, ...]:
    """The answers a gold accepts: its box, the last formula of a sentence, both sides of an OR, or the text itself."""
    final = _FINAL.search(gold)
    if final:
        return (final[1],)
    if has_box(gold):
        try:
            return (extract_answer(gold),)
        except NoAnswer:
            return (gold,)
    if _OR.search(gold):
        return tuple(part for side in _OR.split(gold) for part in gold_answers(side.strip()))
    if phrase := _PHRASE.fullmatch(gold):
        return gold_answers(phrase[1])
    formulas = [next(part for part in match if part) for match in _MATHS.findall(gold)]
    if formulas and len(_WORD.findall(_MATHS.sub(" ", gold))) >= 4 and "where" not in gold:
        return (formulas[-1],)
    return (gold,)
