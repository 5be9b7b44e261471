r"""Answers that are words or choices: `\text{east}`, `Evelyn`, no solution, (C)."""

import re

_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_WORDS = re.compile(r"[^\W\d_][^\W\d_ .,:'\"!?()-]*(?:[ .,:'\"!?()-]+[^\W\d_ .,:'\"!?()-]+)*[ .,'\"!?)-]*")
_LISTED = re.compile(r",|\band\b")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b|\bonly$")
_NO_SOLUTION = "no solution"
_SAME = {
    _NO_SOLUTION: ("no solutions", "none", "empty set", "there is no solution", "there are no solutions",
                   "no real solution", "no real solutions", "no such number", "no such numbers exist", "no values",
                   "no value", "nothing"),
    "undefined": ("does not exist", "dne", "do not exist"),
    "all real numbers": ("all reals", "real numbers", "reals", "all real x", "any real number", "every real number",
                         "set of all real numbers", "set of real numbers"),
    "infinity": ("infinitely many", "infinite", "infinite number", "infinitely many solutions"),
    "converges": ("convergent", "converge"), "diverges": ("divergent", "diverge"),
    "all integers": ("integers", "any integer", "every integer", "set of all integers", "set of integers"),
    "all positive integers": ("positive integers", "any positive integer", "every positive integer"),
    "all rational numbers": ("rational numbers", "all rationals"), "all complex numbers": ("complex numbers",),
    "yes": ("y",), "no": ("n",), "true": (), "false": (),
}  # fmt: skip
_SYNONYMS = {other: key for key, others in _SAME.items() for other in others}
_SMALL = (
    "zero one two three four five six seven eight nine ten"
    " eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety hundred"
_NUMBERS = {name: value for value, name in enumerate(_SMALL.split())} | {
    name: 10 * (value + 2) for value, name in enumerate(_TENS.split()[:-1])
}
_PARTS = {
    "half": 2,
    "third": 3,
    "quarter": 4,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
    "ninth": 9,
    "tenth": 10,
    "twelfth": 12,
}
_REALS = {"\\mathbb{R}", "(-\\infty,\\infty)", "(-\\infty,+\\infty)", "x\\in\\mathbb{R}"}
_SYMBOLS = dict.fromkeys(_REALS, "all real numbers") | {
    "\\mathbb{Z}": "all integers",
    "\\mathbb{Q}": "all rational numbers",
    "\\mathbb{C}": "all complex numbers",
}
_SYMBOLS |= dict.fromkeys(("\\mathbb{Z}^+", "\\mathbb{Z}^{+}", "\\mathbb{Z}_{>0}"), "all positive integers")
NUMBER_SETS = frozenset(_SYMBOLS.values())
"""Keys of answers that may also be written as a set."""

_SUBJECT = (
    "answer|series|sequence|integral|function|number|sum|limit|curve|graph|figure|shape|conic|day|colou?r|winner"
    "|statement|triangle|equation|matrix|set"
)
_CARRIER = re.compile(
    rf"^(?:(?:it|this|that|they|(?:(?:this|that|our|given) )?(?:{_SUBJECT})) (?:is|are|was|were|will be) (?:on )?"
    rf"|(?:it|(?:{_SUBJECT})) (?=(?:(?:con|di)verges|do(?:es)? not exist)$))"
)
_DESCRIBED = (
    "function",
    "number",
    "integer",
    "triangle",
    "series",
    "sequence",
    "integral",
    "matrix",
    "wins",
    "is winner",
    "has winning strategy",
)
_ANSWERED = re.compile(r"(yes|no|true|false) ?[,.;:!-]+ ?\S.*", re.DOTALL)
_NO_SOLUTIONS = re.compile(
    r"(?:there (?:is|are) )?no (?:real |integer |integral |positive )?solutions?(?: exists?)?"
    r"(?: (?:in|over|among) [a-z ]+)?"
)
_IDLE = re.compile(r"\b(?:an?|[Tt]he|[Aa]ll|[Aa]ny|[Ee]very|is|are)\b")
_CHOICE = re.compile(r"\(? ?(?P<letter>[A-Za-z]) ?\)?[.:]?")
_CHOSEN = re.compile(
    r"(?:\\text\{ ?\(?([A-Z])\)? ?[.:]? ?\}|\(([A-Z])\)|([A-Z])[.:)])(?:\\text\{\.\}|[.:,-])?\s*(?P<rest>.*)", re.DOTALL
)
_OPTIONS = re.compile(r"[A-H](?:,? ?[A-H])+")
_OPTION = re.compile(r"(?:\\text\{ ?)?(?i:option|choice|answer|point) ?\}? ?(?=[(A-Z\\])")


def words(text: str) -> str | None:
    """The key of a verbal answer: lower case, no articles, synonyms merged; digits for number words. None for
    mathematics: single letters, short bare letter runs (they may be products), anything with a digit or an operator."""
    if not text or text[0].isdigit():
        return None
    squeezed = text.replace(" ", "").replace("\\right", "").replace("\\left", "")
    if squeezed in ("\\infty", "+\\infty", "-\\infty"):
        return "infinity" if squeezed != "-\\infty" else "negative infinity"
    if squeezed in ("\\emptyset", "\\{\\}", "\\{\\emptyset\\}", "\\phi"):
        return _NO_SOLUTION if squeezed != "\\phi" else None
    if squeezed in _SYMBOLS:
        return _SYMBOLS[squeezed]
    plain = _TEXT.sub(r"\1", text).strip()
    if not _WORDS.fullmatch(plain):
        return None
    letters = sum(character.isalpha() for character in plain)
    if letters < 2 or (
        plain == text and letters < 4 and plain.lower() not in ("yes", "no", "dne") and plain.lower() not in _NUMBERS
    ):
        return None
    if answered := _ANSWERED.fullmatch(plain.casefold()):
        return answered[1]
    parts = [
        _CARRIER.sub("", re.sub(r"[^\w]+", " ", _ARTICLE.sub(" ", part)).strip())
        for part in _LISTED.split(plain.casefold())
    ]
    if len(parts) == 1:
        return _number(parts[0]) or (
            _NO_SOLUTION if _NO_SOLUTIONS.fullmatch(parts[0]) else _SYNONYMS.get(parts[0], parts[0])
        )
    return ", ".join(sorted(_SYNONYMS.get(part, part) for part in parts if part))


def _number(key: str) -> str | None:
    r"""Digits for a number in words (below a million), \frac{2}{3} for two thirds; None for other words."""
    thousands, group, names = 0, 0, key.split()
    for place, name in enumerate(names):
        count, part = _NUMBERS.get(name), _PARTS.get("half" if name == "halves" else name.removesuffix("s"))
        if count is not None and (
            group == 0 or group % 100 == 0 or (group % 10 == 0 and group % 100 >= 20 and count < 10)
        ):
            group += count
        elif name == "hundred" and group < 100:
            group = 100 * (group or 1)
        elif name == "thousand" and not thousands:
            thousands, group = 1000 * (group or 1), 0
        elif part and place and place == len(names) - 1 and not thousands and 0 < group < 20:
            return f"\\frac{{{group}}}{{{part}}}"
        else:
            return "\\frac{1}{2}" if names == ["half"] else None
    return str(thousands + group) if names else None


def described(gold: str, answer: str) -> bool:
    """Two keys of which one names what the other describes: odd beside odd function."""
    short, long = sorted((gold, answer), key=len)
    return short not in ("yes", "no") and any(long == f"{short} {noun}" for noun in _DESCRIBED)


def told(text: str) -> str:
    r"""The text with its words in lower case and without articles, "all" and "is":
    \text{All multiples of} 3 as \text{multiples of}3."""
    return _TEXT.sub(_without_idle, text).replace("} ", "}").replace(" \\text", "\\text")


def _without_idle(match: re.Match[str]) -> str:
    told = " ".join(_IDLE.sub(" ", match[1]).split()).casefold()
    return f"\\text{{{told or match[1]}}}"


def choice(text: str) -> tuple[str, bool] | None:
    """(letter, decorated) of a lone option letter; decorated means in parentheses or \\text{}."""
    bare = _OPTION.sub("", _TEXT.sub(r"\1", text).strip()).removesuffix(" only")
    match = _CHOICE.fullmatch(bare)
    if not match:
        return None
    return match["letter"], len(text) > 1


def options(text: str) -> str | None:
    """The letters of several options, in alphabetical order: ABD of `D, A, B` and of `ABD`. None for anything else,
    and for BDA, which is an order."""
    letters = re.findall("[A-H]", _TEXT.sub(r"\1", text)) if _OPTIONS.fullmatch(_TEXT.sub(r"\1", text)) else []
    ordered = sorted(set(letters))
    return "".join(ordered) if len(letters) == len(ordered) > 1 and ("," in text or letters == ordered) else None


def chosen(text: str) -> tuple[str, str] | None:
    """(letter, rest) of an option with its value behind it: `\\text{(C)} 12`, `C. 12`. None without a value."""
    match = _CHOSEN.fullmatch(_OPTION.sub("", text))
    if not match or not match["rest"].strip():
        return None
    return (match[1] or match[2] or match[3]), match["rest"].strip()
