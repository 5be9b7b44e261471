r"""Answers that are words or choices: `\text{east}`, `Evelyn`, no solution, (C)."""

import re

_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_WORDS = re.compile(r"[^\W\d_][^\W\d_ .,'\"!?()-]*(?:[ .,'\"!?()-]+[^\W\d_ .,'\"!?()-]+)*[ .,'\"!?)-]*")
_LISTED = re.compile(r",|\band\b")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_SOLUTION = "no solution"
_SAME = {
    _NO_SOLUTION: ("no solutions", "none", "empty set", "there is no solution", "there are no solutions", "no real solution", "no real solutions",
                   "no such number", "no such numbers exist", "no values", "no value", "nothing"),
    "undefined": ("does not exist", "dne", "do not exist"),
    "all real numbers": ("all reals", "real numbers", "reals", "all real x", "any real number", "every real number", "set of all real numbers", "set of real numbers"),
    "infinity": ("infinitely many", "infinite", "infinite number", "infinitely many solutions"),
    "yes": ("y",), "no": ("n",), "true": (), "false": (),
}  # fmt: skip
_SYNONYMS = {other: key for key, others in _SAME.items() for other in others}
_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety hundred"
_NUMBERS = {name: str(value) for value, name in enumerate(_SMALL.split())} | {name: str(10 * (value + 2)) for value, name in enumerate(_TENS.split())}
_REALS = {"\\mathbb{R}", "(-\\infty,\\infty)", "(-\\infty,+\\infty)", "x\\in\\mathbb{R}"}
_CHOICE = re.compile(r"\(? ?(?P<letter>[A-Za-z]) ?\)?[.:]?")
_CHOSEN = re.compile(r"(?:\\text\{ ?\(?([A-Z])\)? ?[.:]? ?\}|\(([A-Z])\)|([A-Z])[.:)])(?:\\text\{\.\}|[.:,-])?\s*(?P<rest>.*)", re.DOTALL)
_OPTION = re.compile(r"(?:\\text\{ ?)?(?i:option|choice|answer) ?\}? ?(?=[(A-Z\\])")


def words(text: str) -> str | None:
    """The key of a verbal answer: lower case, no articles, synonyms merged; digits for number words. None for mathematics: single
    letters, short bare letter runs (they may be products), anything with a digit or an operator."""
    if not text or text[0].isdigit():
        return None
    squeezed = text.replace(" ", "").replace("\\right", "").replace("\\left", "")
    if squeezed in ("\\infty", "+\\infty", "-\\infty"):
        return "infinity" if squeezed != "-\\infty" else "negative infinity"
    if squeezed in ("\\emptyset", "\\{\\}", "\\{\\emptyset\\}", "\\phi"):
        return _NO_SOLUTION if squeezed != "\\phi" else None
    if squeezed in _REALS:
        return "all real numbers"
    plain = _TEXT.sub(r"\1", text).strip()
    if not _WORDS.fullmatch(plain):
        return None
    letters = sum(character.isalpha() for character in plain)
    if letters < 2 or (plain == text and letters < 4 and plain.lower() not in ("yes", "no", "dne") and plain.lower() not in _NUMBERS):
        return None
    parts = (re.sub(r"[^\w]+", " ", _ARTICLE.sub(" ", part)).strip() for part in _LISTED.split(plain.casefold()))
    key = ", ".join(sorted(_SYNONYMS.get(part, part) for part in parts if part))
    return _NUMBERS.get(key, key)


def choice(text: str) -> tuple[str, bool] | None:
    """(letter, decorated) of a lone option letter; decorated means in parentheses or \\text{}."""
    bare = _OPTION.sub("", _TEXT.sub(r"\1", text).strip())
    match = _CHOICE.fullmatch(bare)
    if not match:
        return None
    return match["letter"], len(text) > 1


def chosen(text: str) -> tuple[str, str] | None:
    """(letter, rest) of an option with its value behind it: `\\text{(C)} 12`, `C. 12`. None without a value."""
    match = _CHOSEN.fullmatch(_OPTION.sub("", text))
    if not match or not match["rest"].strip():
        return None
    return (match[1] or match[2] or match[3]), match["rest"].strip()
