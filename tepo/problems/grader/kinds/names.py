"""Names of unknowns, as they stand left of an equality sign."""

import re

_SYMBOL = re.compile(r"(?:[a-zA-Z]|\\(?!infty|pi(?![a-z]))[a-zA-Z]+)(?:_(?:\{[^{}]*\}|\w))?'*")
_VALUE_OF = re.compile(r"[a-zA-Z] ?\( ?[a-zA-Z] ?\)")
_GROUPED = re.compile(r"[_^]\s*(?:\{[^{}]*\}|-?\w)|\([^()]*\)|\[[^\[\]]*\]|\\text\{[^{}]*\}")
_INDEX = r"(?:_(?:\{[^{}]*\}|\w))?'*"
_WITHIN = re.compile(
    r"(?:m ?(?=\\)|\\(?:angle|measuredangle|triangle|(?:arc)?(?:sin|cos|tan|cot|sec|csc)|ln|log|det|deg|arg|max|min"
    r"|operatorname\{[^{}]*\})(?![a-zA-Z]))"
    r"|\|([^|]*)\|$|\[([^\[\]]*)\]$|\\(?:overline|vec|bar|hat|dot|ddot|widehat|mathbf)\{([^{}]*)\}$"
)
_ONE = re.compile(
    rf"\((?:{_SYMBOL.pattern})(?:, ?(?:{_SYMBOL.pattern}))+\)"  # (x, y)
    rf"|(?:[A-Z]{_INDEX} ?)+|[a-zA-Z]{{4,}}|\\text\{{[^{{}}]*\}}.*"  # AB, area, \text{the area of} ABC
    rf"|\\?[a-zA-Z]+{_INDEX} ?(?:\([^()]*\)|\[[^\[\]]*\])|[a-zA-Z]\^\{{\\prime\}}(?:\([^()]*\))?"  # P(X), f'(x)
    r"|\\frac\{ ?(?:d|\\partial)[^{}+-]*(?:\{\d\}[^{}+-]*)?\}\{ ?(?:d|\\partial)[^{}+-]*(?:\{\d\})?\}"  # dy/dx
)
_DIGIT = re.compile(r"\d")


def is_symbol(text: str) -> bool:
    return _SYMBOL.fullmatch(text) is not None


def is_variable(text: str) -> bool:
    """x, or a value f(x)."""
    return is_symbol(text) or _VALUE_OF.fullmatch(text) is not None


def is_one_unknown(text: str) -> bool:
    r"""Does this name one unknown (or a tuple of unknowns), so that its value alone answers: x, f(x), AB, \angle ABC,
    |AB|, \tan A, dy/dx, \text{the area of} ABC, (x, y)? Neither x+y nor y^2 does: y^2=4x is a curve."""
    text = text.strip()
    while match := _WITHIN.match(text):
        text = (match[1] or match[2] or match[3] or text[match.end() :]).strip()
    return is_variable(text) or _ONE.fullmatch(text) is not None


def is_name(text: str) -> bool:
    r"""May this stand left of "=" as the name of what is asked: x, f(x), \angle ABC, x^2+y^2, \frac{AB}{CD},
    but not 2x."""
    bare = _GROUPED.sub("", text).strip()
    return bool(bare or text) and not _DIGIT.search(bare) and any(character.isalpha() for character in text)
