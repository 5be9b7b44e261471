r"""Golds of a user's own rows: the whole cell of an answer, or what a worked solution marks as its final answer."""

import re
from dataclasses import dataclass

from tepo.problems.grader.extraction import NoAnswer, extract_answer, gold_answers
from tepo.problems.rows import last_box

UNMARKED = "whose solution marks no final answer"
_LONGEST = 200  # characters of a final answer: what is longer is a solution without one
_READ = 2000  # characters of a text that are looked through for words of a solution

_NAMES = r"think|thinking|thought|reasoning"
_REASONING = re.compile(rf"(</?(?:{_NAMES})>|<\|(?:begin|end)_of_thought\|>|◁/?think▷)", re.IGNORECASE)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
_THOUSANDS = re.compile(r"(?<![\d.,(\[{])[1-9]\d{0,2}(?:,\d{3})+(?![\d,)\]}])")

_FORMULA = re.compile(r"\\\(.*?\\\)|\\\[.*?\\\]|\$[^$]*\$", re.DOTALL)
_WORD = re.compile(r"(?<![\\a-zA-Z])[^\W\d_]{2,}")
_REASON = re.compile(r"\b(?:because|since|so|therefore|thus|hence|we)\b", re.IGNORECASE)
_SENTENCES = re.compile(r"[.!?]\s+[A-Z]|\n")
_ARITHMETIC = re.compile(r"\d\s*(?:[-+*/×÷·]|\\times|\\cdot|\\div)\s*\$?\d[\d.,]*\s*=")
_STATED = re.compile(
    r"\b(?:is|are|was|were|equals?|has|have|gets?|gives?|makes?|yields?|leaves?|costs?|pays?|needs?)"
    r"(?: exactly| only| a total of)?\s+[$€£]?-?\d",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"\b(?:such that|where|if|iff|when|for|all|any|every|each|with)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"[A-Z].*\d.*[.!]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Gold:
    """A gold. cuts: what was left out of its cell, in words. guessed: it is neither a whole cell, nor the last box, nor
    what the last line has after ####."""

    text: str
    cuts: tuple[str, ...] = ()
    guessed: bool = False


def final_answer(text: str) -> Gold:
    r"""The final answer in a text without its reasoning (`<think>…</think>`): in the last `\boxed{}`, behind `####` in
    the last line (GSM8K), or the text itself where it is short and no worked solution.

    Raises ValueError with the reason why there is none, or several that differ."""
    rest = _without_reasoning(text)
    cuts = [] if rest == text else ["reasoning cut off"]
    guessed = bool(cuts)
    if tagged := _TAGGED.findall(rest):
        rest, guessed = tagged[-1], True
        cuts.append("in <answer>")
    marked = _behind_mark(rest)
    if "\\boxed" in rest:
        try:
            answer = extract_answer(rest)
        except NoAnswer as error:
            raise ValueError(f"with an {error}") from None
        number = "\\boxed" not in marked and re.search(r"\d", marked)  # and no heading
        if number and _plain(marked) != _plain(answer):
            raise ValueError("whose solution marks two answers, in \\boxed{} and after ####")
        guessed = answer.strip() != last_box(rest).strip()
        cuts.append("several \\boxed{} joined" if guessed else "in \\boxed{}")
    elif marked:
        answer = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), marked)
        cuts += ["after ####", *(["thousands separators left out"] if answer != marked else [])]
        guessed = False
    else:
        answer = rest
        if "####" in answer or "\n\n" in answer.strip() or len(answer.strip()) > _LONGEST or is_worked(answer):
            raise ValueError(UNMARKED)
    if answer.strip().lower() in ("", "nan"):
        raise ValueError("without an answer" + (" after its reasoning" if cuts and not rest.strip() else ""))
    return Gold(answer.strip(), tuple(cuts), guessed)


def _without_reasoning(text: str) -> str:
    """A text without what is between marks of reasoning, the last of them closed or not, or before an end alone."""
    parts, inside = list[str](), False
    for part in _REASONING.split(text):
        if not _REASONING.fullmatch(part):
            parts += [] if inside else [part]
            continue
        ends = "/" in part or "end" in part.lower()
        if ends and not inside:
            parts.clear()
        inside = not ends
    return "".join(parts)


def _behind_mark(text: str) -> str:
    """What the last line has behind `####`, or below it; an empty text where that is a heading above other lines."""
    before, mark, last = text.rstrip().rpartition("####")
    last = last.strip()
    return "" if not mark or before.endswith("#") or "\n" in last else last


def _plain(answer: str) -> str:
    return re.sub(r"[\s,$*]|\\[,!;]|\{,\}|\.$", "", answer)


def is_worked(answer: str) -> bool:
    """Tell whether a short text is a worked solution or a sentence around an answer, which no response has in its box,
    and not an answer in words: `12 apples`, `no solution`, `all primes p such that p - 1 is a square`."""
    text = answer.strip()[:_READ]
    words = len(_WORD.findall(_FORMULA.sub(" ", text)))
    if words and _ARITHMETIC.search(text):
        return True
    if (words > 2 and _REASON.search(text)) or (words > 3 and _SENTENCES.search(text)):
        return True
    # where the grader reads the answer in it, or the words are a condition, it is an answer
    if words < 2 or gold_answers(text) != (text,) or _CONDITION.search(text):
        return False
    sentence = words > 2 and _SENTENCE.fullmatch(text)
    return bool(_STATED.search(text) or sentence or (words > 7 and re.search(r"\d", text)))
