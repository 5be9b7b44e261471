r"""One LaTeX spelling for an answer: delimiters, decoration, macros, plain-text and Python notation."""

import re
from functools import lru_cache

from tepo.problems.grader.kinds.quantity import one_amount
from tepo.problems.grader.text.brackets import BRACES, PARENTHESES, balanced, closing
from tepo.problems.grader.text.layout import flattened
from tepo.problems.grader.text.remarks import bounded, unquantified, without_remarks
from tepo.problems.grader.text.unicode import to_latex

_CONTROL = str.maketrans(
    {
        "\f": "\\f",
        "\b": "\\b",
        "\v": "\\v",
        "\a": "\\a",
        "\0": " ",
        "\u200b": "",
        "\ufeff": "",
        "\u2061": "",
        "\u00a0": " ",
    }
)
_CONTROL_SPACE = re.compile(r"(?<!\\)\\(?: |$)")
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z])")
_SIZES = (
    r"tiny|small|normalsize|large|Large|LARGE|huge|Huge|underline|left|right|displaystyle|textstyle|scriptstyle"
    r"|limits|nolimits|bigl|bigr|Bigl|Bigr|biggl|biggr|Biggl|Biggr|big|Big|bigg|Bigg"
)
_MARKS = (
    r"\\!|\\hfill|\\strut|\\therefore(?![a-zA-Z])|^\s*\\(?:implies|[Rr]ightarrow|Longrightarrow)(?![a-zA-Z])"
    r"|\\(?:q?quad *\\)?checkmark(?![a-zA-Z])"
)
_REMOVED = re.compile(
    rf"\\(?:{_SIZES}|middle|mathstrut|boldsymbol|bm|rm|bf|it|mathit|mathbf|mathsf|mathtt|bold)(?![a-zA-Z])\s*\.?(?<!\.)|{_MARKS}"
)
_COLOUR = re.compile(r"\\(?:text)?color\s*\{[^{}]*\}")
_DOLLAR_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textrm)\s*\{\s*(\\\$|€|£|¥|₹)")
_SCRIPT_IN_TEXT = re.compile(r"(\\(?:text|mathrm|mbox|textrm)\s*\{[^{}]*)\^\s*\{(-?\d)\}")
_DIGITS_IN_TEXT = re.compile(r"\\text\{(\d[\d,]*(?:\.\d+)?)\}|\\text\{(\d+)(?:st|nd|rd|th)\}")
_LETTERS = re.compile(r"\\text\{ ?([A-H](?:(?:, ?(?:and |or )?| and | or | ?& ?)[A-H])+) ?\}")
_ORDINAL = re.compile(r"(?<=\d) ?(?:\^ ?\{? ?\\text\{(?:st|nd|rd|th)\} ?\}?|\\text\{(?:st|nd|rd|th)\})")
_CHANCE = re.compile(r"(\d+) ?(?:\\text\{(?:in|out of)\}|in|out of) ?(\d+)")
_MAGNITUDE = re.compile(
    r"(?<![\d.,])((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)"
    r" ?(?:(\\text\{) ?)?(hundred|thousand|million|billion|trillion)s?\b(?(2) ?([^{}]*)\})"
)
_AND = re.compile(r" ?,? ?(?:\\text\{,? ?and\}|\band\b) ?")
_COUNTED = re.compile(r"(?<=\d) ?\\text\{([a-zA-Z ]+?),? (and|or)\}(?= ?\d)")
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_NULL_FENCE = re.compile(r"\\(?:left|right)\s*\.")
_THIN_COMMA = re.compile(r"\{,\}\s*|,\s*\\!\s*")
_SPACES = re.compile(r"(?:(?<!\\)\\[,;:> ]|\\q?quad(?![a-zA-Z])|~|\\(?:thin|med|thick)space(?![a-zA-Z])|\s)+")
_TEXT = re.compile(
    r"\\(?:text(?:rm|bf|it|sf|tt|normal|up)?|mbox|hbox|mathrm|textnormal|operatorname\*?)\s*\{([^{}]*)\}"
)
_WORD_FUNCTIONS = (
    "arcsin|arccos|arctan|arccot|sinh|cosh|tanh|coth|sin|cos|tan|cot|sec|csc|ln|log|lg|exp|max|min|gcd|lcm|det|deg|cis"
)
_OPERATOR = re.compile(rf"\\text\{{({_WORD_FUNCTIONS})\}}(?=\s*(?:[({{_^\\]|\d|[a-z](?![a-zA-Z])))")
_ACCENT = re.compile(
    r"\\(vec|overrightarrow|hat|widehat|bar|tilde|overline)(?:\s+|(?=\{))(?:\{\s*\{?([a-zA-Z]{1,2})\}?\s*\}|([a-zA-Z])(?![a-zA-Z]))"
)
_UNIT_FRACTION = re.compile(r"\\frac\{\\text\{([^{}]*)\}\}\{\\text\{([^{}]*)\}\}")
_MINUTES = re.compile(r"(?<![\d.])(\d{1,3}) ?\^\{\\circ\} ?(\d{1,2}) ?(?:'|\^\{\\prime\})$")
_DEGREE_ABOVE = re.compile(r"\\frac\{((?:(?!\\(?:sin|cos|tan|cot|sec|csc))[^{}])*)\^\{\\circ\}\}\{([^{}]*)\}")
_INFIX = re.compile(r"\{([^{}]*)\\(choose|over)(?![a-zA-Z])([^{}]*)\}")
_SOME = r"(?:for|where|with|and|for all|for any|for some)?"
_BRACED = re.compile(r"(\\(?:max|min|gcd|lcm)) ?\\\{([^{}]*)\\\}")
_EXCEPT = re.compile(
    r"^\\text\{(?:all |any |the )?(?:real numbers|reals)(?: [a-z])?"
    r" (?:except|other than|but|excluding)(?: for)?\} ?(.+)$"
)
_SUCH_THAT = re.compile(r"^(\\\{[^:|]*)(?<!\\)[:|]([^:|]*\\\})$")
_INTEGERS = re.compile(
    rf"(?:,\s*\(?|\s*\(|,?\s*\\text\{{ ?{_SOME} ?\}})\s*[a-z](?:\s*,\s*[a-z])*"
    rf"\s*\\in\s*\\(?:mathbb\{{[ZN]\}}|mathbf\{{Z\}}|Z)\)?\s*$"
    r"|\s*,?\s*\(?\\text\{,? ?(?:for|where|with) [^{}]*integers?[^{}]*\}(?: ?[a-z])?\)?\s*$"
    r"|\s*,?\s*\(?\\text\{,? ?(?:for|where|with)\} ?[a-z] ?\\text\{(?:is|are) [^{}]*integers?\}\)?\s*$"
)
_PLAIN_FUNCTION = re.compile(
    rf"(?<![a-zA-Z\\{{])(?:(?:np|math|numpy|sp|sympy)\.)?(a(?:rc)?(?:sin|cos|tan)h?|{_WORD_FUNCTIONS})(?=\s*[({{\\\d]|\s+[a-zA-Z]\b|_|\^)"
)
_NAMES = "alpha|beta|gamma|delta|theta|lambda|sigma|omega|phi|pi|infty|rho|tau"
_PLAIN_NAME = re.compile(rf"(?<![a-zA-Z\\{{])(?:(?:np|math|numpy|sp|sympy)\.)?({_NAMES})(?![a-zA-Z])")
_SIGNED_INFINITY = re.compile(r"(?:\\text\{ ?)?\b(negative|minus|positive|plus) (?:infinity|inf)\b ?\}?", re.IGNORECASE)
_INFINITY = re.compile(r"(?<![a-zA-Z\\])(?:infinity|inf|oo)(?![a-zA-Z])|\\text\{(?:infinity|inf)\}", re.IGNORECASE)
_PLAIN_ROOT = re.compile(r"(?<![a-zA-Z])(?:(?:np|math|numpy|sp|sympy)\.)?\\?(sqrt|cbrt)\s*(?=\()")
_BARE_ROOT = re.compile(r"(?<![a-zA-Z\\])sqrt(?=\s*[{\d])")
_WHOLE_TEXT = re.compile(r"\\text\{([^{}]*\d[^{}]*)\}")
_ISO_INTERVAL = re.compile(r"([\[\]])([^\[\](),]+,[^\[\](),]+)([\[\]])")
_ISO_INTERVALS = re.compile(rf"(?:[a-zA-Z] ?\\in ?)?{_ISO_INTERVAL.pattern}(?: ?\\cup ?{_ISO_INTERVAL.pattern})*")
_SQRT_DIGIT = re.compile(r"\\sqrt\s*(\[[^\[\]]*\])?\s*(\d|[a-zA-Z]|\\[a-zA-Z]+)")
_FRAC = re.compile(r"\\[dtc]?(frac|binom)(?![a-zA-Z])\s*")
_GROUPED = re.compile(r"(?<![\d.,])(\d{1,3})((?: \d{3})+)(?!\d|\s*(?:/|\\frac))")
_LONG_POWER = re.compile(r"\^\s*(-?\d{2,}|-\d|-[a-zA-Z])")
_PAREN_POWER = re.compile(r"\^\s*\(([^()]*)\)")
_RELATIONS = (
    (re.compile(r"\\not\s*=|\\ne(?![a-zA-Z])|!=|\\not\s*\\eq(?![a-zA-Z])|=\s*/\s*="), r"\\neq "),
    (re.compile(r"\\not\s*\\in(?![a-zA-Z])"), r"\\notin "),
    (re.compile(r"\\not\s*<|\\nless(?![a-zA-Z])"), r"\\geq "),
    (re.compile(r"\\not\s*>|\\ngtr(?![a-zA-Z])"), r"\\leq "),
    (re.compile(r"\\(?:not\s*\\leq?|nleq)(?![a-zA-Z])"), ">"),
    (re.compile(r"\\(?:not\s*\\geq?|ngeq)(?![a-zA-Z])"), "<"),
    (re.compile(r"\\(?:lnot|neg)(?![a-zA-Z])"), r"\\not "),
    (re.compile(r"\\nmid(?![a-zA-Z])"), r"\\not \\mid "),
    (re.compile(r"\\(?:leqslant|le|leqq)(?![a-zA-Z])|<=|=<"), r"\\leq "),
    (re.compile(r"\\(?:geqslant|ge|geqq)(?![a-zA-Z])|>="), r"\\geq "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\(?:colon|ratio)(?![a-zA-Z])"), ":"),
    (re.compile(r"\\(?:dots[bcim]?|ldots|cdots|ddots|hdots)(?![a-zA-Z])|\.\.\.+"), r"\\ldots "),
    (re.compile(r"\\(?:varnothing|empty)(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile(r"\\(?:lbrace)(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\(?:rbrace)(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\(?:lbrack)(?![a-zA-Z])"), "["),
    (re.compile(r"\\(?:rbrack)(?![a-zA-Z])"), "]"),
    (re.compile(r"\\(?:var)(?=epsilon|phi|theta|rho|sigma)"), r"\\"),
    (re.compile(r"\\(?:degree|textdegree)(?![a-zA-Z])"), r"^{\\circ}"),
    (re.compile(r"\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})"), r"^{\\circ}"),
    (re.compile(r"\\(?:bmod|pmod|mod)(?![a-zA-Z])"), r"\\mod "),
    (re.compile(r"\\tbinom|\\dbinom"), r"\\binom"),
    (re.compile(r"\\lg(?![a-zA-Z])"), r"\\log_{10}"),
    (re.compile(r"(?<![a-zA-Z\\])rac(?=\{)"), r"\\frac"),
    (re.compile(r"\\(?:imath|jmath)(?![a-zA-Z])"), "i"),
    (re.compile(r"\\mathbb\s*([A-Z])"), r"\\mathbb{\1}"),
    (re.compile(r"\\mathbb\{R\} ?(?:\^ ?(?:\+|\{ ?\+ ?\})|_ ?\{ ?> ?0 ?\})"), r"(0,\\infty )"),
    (re.compile(r"\\mid(?![a-zA-Z])"), r"\\mid "),
    (re.compile(r"\\(?:Rightarrow|Longrightarrow|implies)(?![a-zA-Z])"), r"\\implies "),
    (re.compile(r"\\(?:lvert|rvert|vert)(?![a-zA-Z])"), "|"),
)
_PAIRS = (
    ("$$", "$$"),
    ("\\$", "\\$"),
    ("$", "$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("**", "**"),
    ("`", "`"),
    ('"', '"'),
)


def strip_delimiters(text: str) -> str:
    r"""Take off dollar signs, `\( \)`, `\[ \]`, Markdown and quotation marks, and final punctuation, however nested."""
    while True:
        before = text
        text = text.strip()
        if text.endswith((".", ";", ",", "。")) and not text.endswith(("..", "\\,", "\\;")):
            text = text[:-1].rstrip()
        for left, right in _PAIRS:
            inner = text[len(left) : len(text) - len(right)]
            if (
                len(text) > len(left) + len(right)
                and text.startswith(left)
                and text.endswith(right)
                and left not in inner
                and not inner.endswith("\\")
            ):
                text = inner
        for left, right in (("\\(", "\\)"), ("\\[", "\\]")):  # one of a pair, lost its partner
            if text.endswith(right) and left not in text and not text.endswith("\\" + right):
                text = text[: -len(right)]
            elif text.startswith(left) and right not in text:
                text = text[len(left) :]
        if text == before:
            return text


@lru_cache(maxsize=20_000)
def canonical(text: str) -> str:
    """The canonical spelling; single spaces are kept, because 1 4/5, 5 cm and 10 080 need them."""
    text = text.translate(_CONTROL) if not text.isprintable() else text
    if "\\ " in text or text.endswith("\\"):  # a space in LaTeX; at an end it would be left as a lone backslash
        text = _CONTROL_SPACE.sub(" ", text)
    if "\\begin" in text or "\\\\" in text:
        text = flattened(text)
    if "\\\\" in text and "matrix" not in text and "array" not in text and "cases" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = _SCRIPT_IN_TEXT.sub(r"\1}^{\2}\\text{", _DOLLAR_TEXT.sub(r"\1\\text{", text)) if "\\" in text else text
    text = strip_delimiters(balanced(to_latex(text)))
    text = (
        _THIN_COMMA.sub(",", text)
        .replace("{:}", ":")
        .replace("\\$", "\\text{dollar}")
        .replace("$", " ")
        .replace("\\%", "%")
    )
    if "\\" in text:
        text = _macros(text)
    text = _SPACES.sub(" ", text).strip()
    if any(character.isalpha() for character in text):
        text = _plain_notation(text)
    for pattern, replacement in _RELATIONS:
        text = pattern.sub(replacement, text)
    text = text.replace("**", "^").replace("*", " \\cdot ")
    text = _LONG_POWER.sub(r"^{\1}", _PAREN_POWER.sub(r"^{\1}", text))
    text = _GROUPED.sub(lambda match: match[1] + match[2].replace(" ", ""), text)
    text = _INTEGERS.sub("", text) or text
    text = _MINUTES.sub(lambda match: f"\\frac{{{60 * int(match[1]) + int(match[2])}}}{{60}}^{{\\circ}}", text)
    text = _unwrapped(strip_delimiters(_DEGREE_ABOVE.sub(r"\\frac{\1}{\2}^{\\circ}", _SPACES.sub(" ", text))))
    return _worded(text) if any(character.isalpha() for character in text) else text


def _worded(text: str) -> str:
    """Words around and inside amounts: 3 million, 2 hours 30 minutes, 1 in 4, "the value is",
    remarks in parentheses."""
    text = _COUNTED.sub(r"\\text{\1} \\text{\2}", _SUCH_THAT.sub(r"\1\\mid \2", text))
    text = _BRACED.sub(r"\1(\2)", unquantified(text))
    if excepted := _EXCEPT.match(text):
        return f"\\mathbb{{R}} \\setminus \\{{{re.sub(_AND, ', ', excepted[1])}\\}}"
    text = bounded(_MAGNITUDE.sub(_written_out, without_remarks(text)))
    chance = _CHANCE.fullmatch(text)
    return f"\\frac{{{chance[1]}}}{{{chance[2]}}}" if chance else one_amount(text) or text


def _written_out(match: re.Match[str]) -> str:
    """3.2 million as 3200000, the unit kept."""
    whole, _, places = match[1].replace(",", "").partition(".")
    power = _POWERS[match[3]]
    if len(places) > power:
        return match.group()
    number = (whole + places.ljust(power, "0")).lstrip("0") or "0"
    return f"{number} \\text{{{match[4]}}}" if match[4] else number


def _unwrapped(text: str) -> str:
    r"""Without plain braces or a \text{} around the whole of it, and with ISO intervals ]a, b[ as (a, b)."""
    match = _WHOLE_TEXT.fullmatch(text)
    if match:
        text = match[1].strip()
    if len(text) > 2 and text[0] == "{" and text[-1] == "}" and closing(text, 0, BRACES) == len(text) - 1:
        return strip_delimiters(text[1:-1])
    return _ISO_INTERVAL.sub(_round, text) if _ISO_INTERVALS.fullmatch(text) else text


def _round(match: re.Match[str]) -> str:
    return f"{'(' if match[1] == ']' else '['}{match[2]}{')' if match[3] == '[' else ']'}"


def _macros(text: str) -> str:
    text = _REMOVED.sub("", _NULL_FENCE.sub("", _COLOUR.sub("", text)))
    text = _TEXT.sub(lambda match: "\\text{" + _SPACES.sub(" ", match[1]).strip() + "}", text)
    text = _OPERATOR.sub(r"\\\1 ", text)
    text = (
        re.sub(r"\\text\{([ie])\}", r"\1", text)
        .replace("\\text{}", "")
        .replace("\\text{.}", ".")
        .replace("\\text{,}", ",")
    )
    text = _DIGITS_IN_TEXT.sub(r"\1\2", text)
    text = _ORDINAL.sub("", _LETTERS.sub(lambda match: ", ".join(re.findall("[A-H]", match[1])), text))
    text = _INFIX.sub(
        lambda match: f"\\{'binom' if match[2] == 'choose' else 'frac'}{{{match[1].strip()}}}{{{match[3].strip()}}}",
        text,
    )
    return _UNIT_FRACTION.sub(r"\\text{\1/\2}", _arguments(_ACCENT.sub(_accented, text)))


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
    return _SQRT_DIGIT.sub(lambda match: f"\\sqrt{match[1] or ''}{{{match[2]}}}", text)


def _argument(text: str) -> tuple[str, str]:
    """(argument without braces, rest): one braced group, one command, or one character.

    A fraction inside waits for its turn."""
    text = text.lstrip()
    if not text:
        return "", ""
    if text[0] != "{":
        match = re.match(r"\\[a-zA-Z]+|.", text, re.DOTALL)
        assert match
        return ("", text) if match.group() in ("\\sqrt", "\\", "}") else (match.group(), text[match.end() :])
    end = closing(text, 0, BRACES)
    return ("", text) if end is None else (text[1:end].strip(), text[end + 1 :])


def _plain_notation(text: str) -> str:
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
    return _SQRT_DIGIT.sub(lambda match: f"\\sqrt{match[1] or ''}{{{match[2]}}}", text)
