"""Plain-text and Python notation as LaTeX: sqrt(2), np.arcsin(x), pi, infinity."""

import re

from tepo.problems.grader.text.brackets import PARENTHESES, closing
from tepo.problems.grader.text.macros import WORD_FUNCTIONS, braced_roots

_PLAIN_FUNCTION = re.compile(
    rf"(?<![a-zA-Z\\{{])(?:(?:np|math|numpy|sp|sympy)\.)?(a(?:rc)?(?:sin|cos|tan)h?|{WORD_FUNCTIONS})(?=\s*[({{\\\d]|\s+[a-zA-Z]\b|_|\^)"
)
_NAMES = "alpha|beta|gamma|delta|theta|lambda|sigma|omega|phi|pi|infty|rho|tau"
_PLAIN_NAME = re.compile(rf"(?<![a-zA-Z\\{{])(?:(?:np|math|numpy|sp|sympy)\.)?({_NAMES})(?![a-zA-Z])")
_SIGNED_INFINITY = re.compile(r"(?:\\text\{ ?)?\b(negative|minus|positive|plus) (?:infinity|inf)\b ?\}?", re.IGNORECASE)
_INFINITY = re.compile(r"(?<![a-zA-Z\\])(?:infinity|inf|oo)(?![a-zA-Z])|\\text\{(?:infinity|inf)\}", re.IGNORECASE)
_PLAIN_ROOT = re.compile(r"(?<![a-zA-Z])(?:(?:np|math|numpy|sp|sympy)\.)?\\?(sqrt|cbrt)\s*(?=\()")
_BARE_ROOT = re.compile(r"(?<![a-zA-Z\\])sqrt(?=\s*[{\d])")


def plain_notation_as_latex(text: str) -> str:
    """sqrt(2) and np.arcsin(x) as LaTeX commands, pi and infinity as symbols."""
    text = _SIGNED_INFINITY.sub(
        lambda match: ("-" if match[1].lower() in ("negative", "minus") else "") + "\\infty ", text
    )
    text = _INFINITY.sub(r"\\infty ", text)
    while match := _PLAIN_ROOT.search(text):
        end = closing(text, match.end(), PARENTHESES)
        end = len(text) if end is None else end
        index_part = "[3]" if match[1] == "cbrt" else ""
        text = f"{text[: match.start()]}\\sqrt{index_part}{{{text[match.end() + 1 : end]}}}{text[end + 1 :]}"
    text = _BARE_ROOT.sub(r"\\sqrt", text)
    text = _PLAIN_FUNCTION.sub(lambda match: "\\" + re.sub(r"^a(?=sin|cos|tan)", "arc", match[1]) + " ", text)
    text = _PLAIN_NAME.sub(r"\\\1 ", text)
    return braced_roots(text)
