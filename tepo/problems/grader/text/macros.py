r"""LaTeX commands: those that only decorate are removed, the others get one name and braces around their arguments;
plain-text and Python notation (sqrt(2), np.arcsin(x), pi) becomes LaTeX."""

import re

from tepo.problems.grader.text.brackets import BRACES, PARENTHESES, closing

_SIZES = (
    r"tiny|small|normalsize|large|Large|LARGE|huge|Huge|underline|left|right|displaystyle|textstyle|scriptstyle"
    r"|limits|nolimits|bigl|bigr|Bigl|Bigr|biggl|biggr|Biggl|Biggr|big|Big|bigg|Bigg"
)
_MARKS = (
    r"\\hfill(?![a-zA-Z])|\\therefore(?![a-zA-Z])|^\s*\\(?:implies|[Rr]ightarrow|Longrightarrow)(?![a-zA-Z])"
    r"|\\(?:q?quad *\\)?checkmark(?![a-zA-Z])"
)
_REMOVED = re.compile(
    rf"\\(?:{_SIZES}|middle|mathstrut|strut|boldsymbol|bm|rm|bf|it|mathit|mathbf|mathsf|mathtt|bold)(?![a-zA-Z])\s*\.?(?<!\.)"
    rf"|\\!|(?P<mark>{_MARKS})"
)
"""What does not print; in the place of a mark, which does, a space is left: 1\\checkmark 2 is not 12."""
_COLOUR = re.compile(r"\\(?:text)?color\s*\{[^{}]*\}")
_DIGITS_IN_TEXT = re.compile(r"\\text\{(\d[\d,]*(?:\.\d+)?)\}|\\text\{(\d+)(?:st|nd|rd|th)\}")
_LETTERS = re.compile(r"\\text\{ ?([A-H](?:(?:, ?(?:and |or )?| and | or | ?& ?)[A-H])+) ?\}")
_ORDINAL = re.compile(r"(?<=\d) ?(?:\^ ?\{? ?\\text\{(?:st|nd|rd|th)\} ?\}?|\\text\{(?:st|nd|rd|th)\})")
_NULL_FENCE = re.compile(r"\\(?:left|right)\s*\.")
_TEXT = re.compile(
    r"\\(?:text(?:rm|bf|it|sf|tt|normal|up)?|mbox|hbox|mathrm|textnormal|operatorname\*?)\s*\{([^{}]*)\}"
)
WORD_FUNCTIONS = (
    "arcsin|arccos|arctan|arccot|sinh|cosh|tanh|coth|sin|cos|tan|cot|sec|csc|ln|log|lg|exp|max|min|gcd|lcm|det|deg|cis"
)
_OPERATOR = re.compile(rf"\\text\{{({WORD_FUNCTIONS})\}}(?=\s*(?:[({{_^\\]|\d|[a-z](?![a-zA-Z])))")
_ACCENT = re.compile(
    r"\\(vec|overrightarrow|hat|widehat|bar|tilde|overline)(?:\s+|(?=\{))(?:\{\s*\{?([a-zA-Z]{1,2})\}?\s*\}|([a-zA-Z])(?![a-zA-Z]))"
)
_UNIT_FRACTION = re.compile(r"\\frac\{\\text\{([^{}]*)\}\}\{\\text\{([^{}]*)\}\}")
_INFIX = re.compile(r"\{([^{}]*)\\(choose|over)(?![a-zA-Z])([^{}]*)\}")
_BARE_ROOT = re.compile(r"\\sqrt\s*(\[[^\[\]]*\])?\s*(\d|[a-zA-Z]|\\[a-zA-Z]+)")
SPACES = re.compile(r"(?:(?<!\\)\\[,;:> ]|\\q?quad(?![a-zA-Z])|~|\\(?:thin|med|thick)space(?![a-zA-Z])|\s)+")
_FRAC = re.compile(r"\\[dtc]?(frac|binom)(?![a-zA-Z])\s*")


def simplified_macros(text: str) -> str:
    r"""\mathrm{cm} as \text{cm}, {n \choose k} as \binom{n}{k}, \frac12 as \frac{1}{2}; without sizes and fonts."""
    text = _REMOVED.sub(lambda match: " " if match["mark"] else "", _NULL_FENCE.sub("", _COLOUR.sub("", text)))
    text = _TEXT.sub(_spaced, text)
    text = _OPERATOR.sub(r"\\\1 ", text)
    text = re.sub(r"\\text\{([ie])\}", r"\1", text).replace("\\text{}", " ")
    text = text.replace("\\text{.}", ".").replace("\\text{,}", ",")
    text = _DIGITS_IN_TEXT.sub(r"\1\2", text)
    text = _ORDINAL.sub(" ", _LETTERS.sub(lambda match: ", ".join(re.findall("[A-H]", match[1])), text))
    names = {"choose": "binom", "over": "frac"}
    text = _INFIX.sub(lambda match: f"\\{names[match[2]]}{{{match[1].strip()}}}{{{match[3].strip()}}}", text)
    return _UNIT_FRACTION.sub(r"\\text{\1/\2}", _arguments(_ACCENT.sub(_accented, text)))


def _spaced(match: re.Match[str]) -> str:
    r"""\mbox{ cm } as \text{cm}; a space beside a digit goes outside, so that \text{1 }\text{2} is not 12."""
    inner = SPACES.sub(" ", match[1])
    bare = inner.strip()
    before = " " if inner[:1] == " " and bare[:1].isdigit() else ""
    return f"{before}\\text{{{bare}}}" + (" " if inner[-1:] == " " and bare[-1:].isdigit() else "")


def _accented(match: re.Match[str]) -> str:
    r"""\vec b, \overrightarrow{b} and \vec{b} alike; the unit vectors \hat{i}, \hat{j}, \hat{k} as \mathbf{i} is."""
    name = {"overrightarrow": "vec", "widehat": "hat"}.get(match[1], match[1])
    letter = match[2] or match[3]
    return letter if letter in "ijk" and name in ("vec", "hat") else f"\\{name}{{{letter}}}"


def _arguments(text: str) -> str:
    r"""Braces around the arguments of \frac, \binom and \sqrt: `\frac12`, `\frac 1{x}`, `\sqrt3`."""
    pieces = _FRAC.split(text)
    if len(pieces) > 1:
        text = pieces[0]
        for name, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            first, rest = _argument(piece)
            second, rest = _argument(rest)
            text += f"\\{name}{{{first}}}{{{second}}}" + rest if first and second else f"\\{name}" + piece
    return braced_roots(text)


def braced_roots(text: str) -> str:
    r"""\sqrt3 as \sqrt{3}."""
    return _BARE_ROOT.sub(lambda match: f"\\sqrt{match[1] or ''}{{{match[2]}}}", text)


def _argument(text: str) -> tuple[str, str]:
    """(argument without braces, rest): one braced group, one command, or one character. A fraction inside waits for its
    turn."""
    text = text.lstrip()
    if not text:
        return "", ""
    if text[0] != "{":
        match = re.match(r"\\[a-zA-Z]+|.", text, re.DOTALL)
        assert match
        return ("", text) if match.group() in ("\\sqrt", "\\", "}") else (match.group(), text[match.end() :])
    end = closing(text, 0, BRACES)
    return ("", text) if end is None else (text[1:end].strip(), text[end + 1 :])


_PLAIN_FUNCTION = re.compile(
    rf"(?<![a-zA-Z\\{{])(?:(?:np|math|numpy|sp|sympy)\.)?(a(?:rc)?(?:sin|cos|tan)h?|{WORD_FUNCTIONS})(?=\s*[({{\\\d]|\s+[a-zA-Z]\b|_|\^)"
)
_NAMES = "alpha|beta|gamma|delta|theta|lambda|sigma|omega|phi|pi|infty|rho|tau"
_PLAIN_NAME = re.compile(rf"(?<![a-zA-Z\\{{])(?:(?:np|math|numpy|sp|sympy)\.)?({_NAMES})(?![a-zA-Z])")
_SIGNED_INFINITY = re.compile(r"(?:\\text\{ ?)?\b(negative|minus|positive|plus) (?:infinity|inf)\b ?\}?", re.IGNORECASE)
_INFINITY = re.compile(r"(?<![a-zA-Z\\])(?:infinity|inf|oo)(?![a-zA-Z])|\\text\{(?:infinity|inf)\}", re.IGNORECASE)
_PLAIN_ROOT = re.compile(r"(?<![a-zA-Z])(?:(?:np|math|numpy|sp|sympy)\.)?\\?(sqrt|cbrt)\s*(?=\()")
_PLAIN_BARE_ROOT = re.compile(r"(?<![a-zA-Z\\])sqrt(?=\s*[{\d])")


def plain_notation_as_latex(text: str) -> str:
    """sqrt(2) and np.arcsin(x) as LaTeX commands, pi and infinity as symbols."""
    negative = ("negative", "minus")
    text = _SIGNED_INFINITY.sub(lambda match: f"{'-' * (match[1].lower() in negative)}\\infty ", text)
    text = _INFINITY.sub(r"\\infty ", text)
    while match := _PLAIN_ROOT.search(text):
        end = closing(text, match.end(), PARENTHESES)
        end = len(text) if end is None else end
        index_part = "[3]" if match[1] == "cbrt" else ""
        text = f"{text[: match.start()]}\\sqrt{index_part}{{{text[match.end() + 1 : end]}}}{text[end + 1 :]}"
    text = _PLAIN_BARE_ROOT.sub(r"\\sqrt", text)
    text = _PLAIN_FUNCTION.sub(lambda match: "\\" + re.sub(r"^a(?=sin|cos|tan)", "arc", match[1]) + " ", text)
    text = _PLAIN_NAME.sub(r"\\\1 ", text)
    return braced_roots(text)
