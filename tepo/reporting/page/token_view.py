"""Classes of the tokens of a dump, and how many of each a mask takes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tepo.store.stored_tokens import TokenResponse, Values

CLASSES = ("digit", "operator", "word", "answer", "other")

_OPERATORS = frozenset("+-−*×·/÷=<>≤≥^%&|~!()[]{}\\")


@dataclass(frozen=True)
class ClassCount:
    """tokens: how many of a class. masked: how many of them the mask takes, None without a mask. means: mean of each
    value over them."""

    name: str
    tokens: int
    masked: int | None
    means: dict[str, float | None]


def token_classes(tokens: Sequence[str]) -> list[str]:
    """One of CLASSES per token.

    What lies within the last complete box is `answer`; a token with several kinds of characters takes the first that
    applies of digit, word, operator.
    """
    text = "".join(tokens)
    first, last = _answer_span(text)
    classes, start = [], 0
    for token in tokens:
        inside = first <= start < last
        classes.append("answer" if inside and token else _kind(token))
        start += len(token)
    return classes


def _answer_span(text: str) -> tuple[int, int]:
    """Span of the content of the last complete `\\boxed{...}`; (0, 0) without one."""
    for match in reversed(list(re.finditer(r"\\boxed\s*\{", text))):
        depth = 1
        for index in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[index], 0)
            if depth == 0:
                return match.end(), index
    return 0, 0


@lru_cache(maxsize=4096)
def _kind(token: str) -> str:
    if re.fullmatch(r"<[^<>\s]+>", token):  # <eos> and its like
        return "other"
    if any(character.isdigit() for character in token):
        return "digit"
    if any(character.isalpha() for character in token):
        return "word"
    return "operator" if any(character in _OPERATORS for character in token) else "other"


def mask_of(response: TokenResponse) -> Values | None:
    """The KL mask that was applied, else TEPO's (A > 0 and falling entropy; Eq. 4) worked out from the values, else
    None."""
    if "kl_mask" in response.values:
        return response.values["kl_mask"]
    advantage, change = response.values.get("advantage"), response.values.get("entropy_change")
    if advantage is None or change is None:
        return None
    return [None if a is None or h is None else float(a > 0 and h < 0) for a, h in zip(advantage, change, strict=True)]


def class_counts(responses: Sequence[TokenResponse]) -> list[ClassCount]:
    """Counts and means over all tokens of each class, classes that occur only, then "all"."""
    names = np.array([name for response in responses for name in token_classes(response.tokens)])
    mask = _column(responses, [mask_of(response) for response in responses])
    columns = {
        value: _column(responses, [response.values.get(value) for response in responses])
        for value in dict.fromkeys(value for response in responses for value in response.values)
    }
    counts = []
    for name in (*CLASSES, "all"):
        inside = np.ones(len(names), dtype=bool) if name == "all" else names == name
        if inside.any():
            known = mask[inside & ~np.isnan(mask)]
            means: dict[str, float | None] = {
                value: float(numbers[inside & ~np.isnan(numbers)].mean())
                for value, numbers in columns.items()
                if not np.isnan(numbers[inside]).all()
            }
            counts.append(ClassCount(name, int(inside.sum()), int((known != 0).sum()) if len(known) else None, means))
    return counts


def _column(responses: Sequence[TokenResponse], values: Sequence[Values | None]) -> np.ndarray:
    """One number per token of all responses, NaN where there is none."""
    parts = [
        np.full(len(response.tokens), np.nan) if numbers is None else np.array(numbers, dtype=float)
        for response, numbers in zip(responses, values, strict=True)
    ]
    return np.concatenate(parts) if parts else np.empty(0)
