"""Names of unknowns, as they stand left of an equality sign."""

import re

_SYMBOL = re.compile(r"(?:[a-zA-Z]|\\(?!infty|pi(?![a-z]))[a-zA-Z]+)(?:_(?:\{[^{}]*\}|\w))?'*")
_VALUE_OF = re.compile(r"[a-zA-Z] ?\( ?[a-zA-Z] ?\)")
_GROUPED = re.compile(r"[_^]\s*(?:\{[^{}]*\}|-?\w)|\([^()]*\)|\[[^\[\]]*\]|\\text\{[^{}]*\}")
_DIGIT = re.compile(r"\d")


def is_symbol(text: str) -> bool:
    return _SYMBOL.fullmatch(text) is not None


def is_variable(text: str) -> bool:
    """x, or a value f(x)."""
    return is_symbol(text) or _VALUE_OF.fullmatch(text) is not None


def is_name(text: str) -> bool:
    r"""May this stand left of "=" as the name of what is asked: x, f(x), \angle ABC, x^2+y^2, \frac{AB}{CD},
    but not 2x."""
    bare = _GROUPED.sub("", text).strip()
    return bool(bare or text) and not _DIGIT.search(bare) and any(character.isalpha() for character in text)
