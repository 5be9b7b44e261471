r"""One LaTeX spelling for an answer, step by step: layout, Unicode, delimiters, macros, plain notation, words."""

import re
from functools import lru_cache

from tepo.problems.grader.text.brackets import BRACES, balanced, closing
from tepo.problems.grader.text.latex_layout import flattened
from tepo.problems.grader.text.macros import SPACES, plain_notation_as_latex, simplified_macros
from tepo.problems.grader.text.unicode import to_latex
from tepo.problems.grader.text.wording import words_as_notation

_ESCAPES = {"\f": "\\f", "\b": "\\b", "\v": "\\v", "\a": "\\a"}
"""Control characters that a JSON or Python string made of \\frac, \\boxed, \\vec and \\alpha."""
_CONTROL = str.maketrans({**_ESCAPES, "\0": " ", "\u200b": "", "\ufeff": "", "\u2061": "", "\u00a0": " "})
_CONTROL_SPACE = re.compile(r"(?<!\\)\\(?: |$)")
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z])")
_DOLLAR_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textrm)\s*\{\s*(\\\$|€|£|¥|₹)")
_SCRIPT_IN_TEXT = re.compile(r"(\\(?:text|mathrm|mbox|textrm)\s*\{[^{}]*)\^\s*\{(-?\d)\}")
_THIN_COMMA = re.compile(r"\{,\}\s*|,\s*\\!\s*")
_MINUTES = re.compile(r"(?<![\d.])(\d{1,3}) ?\^\{\\circ\} ?(\d{1,2}) ?(?:'|\^\{\\prime\})$")
_DEGREE_ABOVE = re.compile(r"\\frac\{((?:(?!\\(?:sin|cos|tan|cot|sec|csc))[^{}])*)\^\{\\circ\}\}\{([^{}]*)\}")
_SOME = r"(?:for|where|with|and|for all|for any|for some)?"
_INTEGERS = re.compile(
    rf"(?:,\s*\(?|\s*\(|,?\s*\\text\{{ ?{_SOME} ?\}})\s*[a-z](?:\s*,\s*[a-z])*"
    rf"\s*\\in\s*\\(?:mathbb\{{[ZN]\}}|mathbf\{{Z\}}|Z)\)?\s*$"
    r"|\s*,?\s*\(?\\text\{,? ?(?:for|where|with) [^{}]*integers?[^{}]*\}(?: ?[a-z])?\)?\s*$"
    r"|\s*,?\s*\(?\\text\{,? ?(?:for|where|with)\} ?[a-z] ?\\text\{(?:is|are) [^{}]*integers?\}\)?\s*$"
)
_ALL_TEXT = re.compile(r"\\text\{([^{}]*\d[^{}]*)\}")
_ISO_INTERVAL = re.compile(r"([\[\]])([^\[\](),]+,[^\[\](),]+)([\[\]])")
_ISO_INTERVALS = re.compile(rf"(?:[a-zA-Z] ?\\in ?)?{_ISO_INTERVAL.pattern}(?: ?\\cup ?{_ISO_INTERVAL.pattern})*")
_GROUPED = re.compile(r"(?<![\d.,])(\d{1,3})((?: \d{3})+)(?!\d|\s*(?:/|\\frac))")
_LONG_POWER = re.compile(r"\^\s*(-?\d{2,}|-\d|-[a-zA-Z])")
_PAREN_POWER = re.compile(r"\^\s*\(([^()]*)\)")
_SYNONYMS = (
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
_BRACKETS = [("\\(", "\\)"), ("\\[", "\\]")]
_PAIRS = [("$$", "$$"), ("\\$", "\\$"), ("$", "$"), *_BRACKETS, ("**", "**"), ("`", "`"), ('"', '"')]


def strip_delimiters(text: str) -> str:
    r"""Take off dollar signs, `\( \)`, `\[ \]`, Markdown and quotation marks, and final punctuation, however nested."""
    while True:
        before = text
        text = text.strip()
        if text.endswith((".", ";", ",", "。")) and not text.endswith(("..", "\\,", "\\;")):
            text = text[:-1].rstrip()
        for left, right in _PAIRS:
            inner = text[len(left) : len(text) - len(right)]
            around = len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right)
            if around and left not in inner and not inner.endswith("\\"):
                text = inner
        for left, right in _BRACKETS:  # one of a pair, lost its partner
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
    text = _THIN_COMMA.sub(",", text).replace("{:}", ":").replace("\\$", "\\text{dollar}")
    text = text.replace("$", " ").replace("\\%", "%")
    if "\\" in text:
        text = simplified_macros(text)
    text = SPACES.sub(" ", text).strip()
    if any(character.isalpha() for character in text):
        text = plain_notation_as_latex(text)
    for pattern, replacement in _SYNONYMS:
        text = pattern.sub(replacement, text)
    text = text.replace("**", "^").replace("*", " \\cdot ")
    text = _LONG_POWER.sub(r"^{\1}", _PAREN_POWER.sub(r"^{\1}", text))
    text = _GROUPED.sub(lambda match: match[1] + match[2].replace(" ", ""), text)
    text = _INTEGERS.sub("", text) or text
    text = _MINUTES.sub(lambda match: f"\\frac{{{60 * int(match[1]) + int(match[2])}}}{{60}}^{{\\circ}}", text)
    text = _unwrapped(strip_delimiters(_DEGREE_ABOVE.sub(r"\\frac{\1}{\2}^{\\circ}", SPACES.sub(" ", text))))
    return words_as_notation(text) if any(character.isalpha() for character in text) else text


def _unwrapped(text: str) -> str:
    r"""Without plain braces or a \text{} around all of it, and with ISO intervals ]a, b[ as (a, b)."""
    match = _ALL_TEXT.fullmatch(text)
    if match:
        text = match[1].strip()
    if len(text) > 2 and text[0] == "{" and text[-1] == "}" and closing(text, 0, BRACES) == len(text) - 1:
        return strip_delimiters(text[1:-1])
    if not _ISO_INTERVALS.fullmatch(text):
        return text
    left, right = {"]": "(", "[": "["}, {"[": ")", "]": "]"}
    return _ISO_INTERVAL.sub(lambda match: f"{left[match[1]]}{match[2]}{right[match[3]]}", text)
