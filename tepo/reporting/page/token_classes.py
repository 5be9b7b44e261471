"""Classes of tokens: digits, operators, words, the answer, others."""

import re
from collections.abc import Sequence
from functools import lru_cache

CLASSES = ("digit", "operator", "word", "answer", "other")

_OPERATORS = frozenset("+-−*×·/÷=<>≤≥^%&|~!()[]{}\\")


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
