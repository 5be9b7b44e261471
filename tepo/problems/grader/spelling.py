r"""One LaTeX spelling for an answer, step by step: environments that only lay out, Unicode (√2, x², ½, ≤), delimiters,
commands under one name with braces around their arguments, plain notation (sqrt(2), np.arcsin(x), pi), words."""

import re
import unicodedata
from functools import lru_cache

from tepo.problems.grader.brackets import BRACES, PARENTHESES, balanced, closing, rewrite, rules
from tepo.problems.grader.wording import words_as_notation

_SIGNS = """
    π pi, θ theta, α alpha, β beta, γ gamma, δ delta, ε epsilon, λ lambda, μ mu, ρ rho, σ sigma, τ tau, φ phi,
    ϕ phi, ψ psi, ω omega, Ω Omega, Δ Delta, Σ Sigma, Π Pi, Γ Gamma, Θ Theta, Λ Lambda, Φ Phi, Ψ Psi, ∞ infty,
    ≤ leq, ⩽ leq, ≥ geq, ⩾ geq, ≠ neq, ≈ approx, ≡ equiv, ∈ in, ∉ notin, ∪ cup, ∩ cap, ∅ emptyset, ⊂ subset,
    ⊆ subseteq, × times, · cdot, ⋅ cdot, ∙ cdot, ÷ div, ± pm, ∓ mp, ⌊ lfloor, ⌋ rfloor, ⌈ lceil, ⌉ rceil,
    ⟨ langle, ⟩ rangle, ∖ setminus, … ldots, ⋯ cdots, ∑ sum, ∏ prod, ∫ int, ∧ wedge, ∨ vee, → to, ∣ mid, ∤ nmid
"""
_PLAIN = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "∶": ":", "⁄": "/", "∕": "/",
    "，": ",", "。": ".", "；": ";", "∗": "*", "’": "'", "′": "'", "“": '"', "”": '"',
    "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℕ": "\\mathbb{N}", "ℚ": "\\mathbb{Q}", "ℂ": "\\mathbb{C}",
    "°": "^{\\circ}", "º": "^{\\circ}", "˚": "^{\\circ}", "℃": "^{\\circ}\\text{C}", "℉": "^{\\circ}\\text{F}",
    "‰": "\\text{permille}", "€": "\\text{euro}", "£": "\\text{pound}", "¥": "\\text{yen}", "₹": "\\text{rupee}",
}  # fmt: skip
_TABLE = str.maketrans({sign: f"\\{name} " for sign, name in re.findall(r"([^\s,]) (\w+)", _SIGNS)} | _PLAIN)

_UP = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni")
_DOWN = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-")
_VULGAR = re.compile("[¼-¾⅐-⅞↉]")
_SCRIPTS = rules(
    ("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ]+", lambda run: "^{" + run.group().translate(_UP) + "}"),
    ("[₀₁₂₃₄₅₆₇₈₉₊₋]+", lambda run: "_{" + run.group().translate(_DOWN) + "}"),
)
_ROOT = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?|[a-zA-Z]|\\pi)?")
_PLAIN_ROOT = re.compile(r"(?<![a-zA-Z])(?:(?:np|math|numpy|sp|sympy)\.)?\\?(sqrt|cbrt)\s*()(?=\()")
_DEGREES = {"√": "", "∛": "[3]", "∜": "[4]", "sqrt": "", "cbrt": "[3]"}


def to_latex(text: str) -> str:
    """LaTeX in ASCII where a spelling exists; other characters are left (compatibility forms folded by NFKC)."""
    if text.isascii():
        return text
    for vulgar in _VULGAR.findall(text):
        above, _, below = unicodedata.normalize("NFKC", vulgar).partition("\u2044")
        text = text.replace(vulgar, f"\\frac{{{above}}}{{{below}}}")
    text = _rooted(rewrite(text, _SCRIPTS), _ROOT).translate(_TABLE)
    return unicodedata.normalize("NFKC", text).translate(_TABLE)


def _rooted(text: str, root: re.Pattern[str]) -> str:
    """√2 -> \\sqrt{2}, sqrt(x+1) -> \\sqrt{x+1}, ∛x -> \\sqrt[3]{x}."""
    while match := root.search(text):
        command, end = "\\sqrt" + _DEGREES[match[1]] + (f"{{{match[2]}}}" if match[2] else ""), match.end()
        if not match[2] and text[end : end + 1] == "(":
            close = closing(text, end, PARENTHESES)
            close = len(text) if close is None else close
            command, end = f"{command}{{{text[end + 1 : close]}}}", close + 1
        text = text[: match.start()] + command + text[end:]
    return text


_LAID_OUT = r"align(?:ed|edat|at)?|gather(?:ed)?|split|equation|multline|eqnarray"
_ENVIRONMENT = re.compile(
    rf"(?P<brace>(?:\\left ?)?\\(?:\{{|lbrace) ?)?"
    rf"\\begin\{{(?P<name>(?:{_LAID_OUT})\*?|[dr]?cases|array)\}}(?P<columns>\{{[^{{}}]*\}}|\[[tbc]\])?"
    r"(?P<body>(?:(?!\\begin\{|\\end\{).)*)\\end\{(?P=name)\}(?(brace)(?: ?\\right ?\.)?)",
    re.DOTALL,
)
ROW = re.compile(r"\\\\(?:\[[^\]]*\])?")
_BARE_ROW = re.compile(r"\s*(?<!\\)\\\\(?=\s)\s*(?=\S)")
_CONTINUES = re.compile(r"\s*(?:=|<|>|\\(?:leq?|geq?|approx|equiv|implies|Rightarrow)(?![a-zA-Z]))")
_CONDITION = r"\\text ?\{ ?,? ?(?:if|for|when|whenever|where|otherwise|else)\b"
_STARTS = re.compile(rf"(?={_CONDITION})")
_RELATION_SIGN = re.compile(r"[=<>]|\\(?:leq?|geq?|neq?|in)(?![a-zA-Z])")


def flattened(text: str) -> str:
    r"""Layout as lists: `\begin{cases} x=1 \\ y=2 \end{cases}` is x=1, y=2;
    equations on lines of their own are a list too."""
    if "\\begin" in text:
        text = _ENVIRONMENT.sub(_flat, text)
    rows = [] if "\\begin" in text else _BARE_ROW.split(text)
    return ", ".join(rows) if len(rows) > 1 and all(_RELATION_SIGN.search(row) for row in rows) else text


def _flat(match: re.Match[str]) -> str:
    rows = [row for row in ROW.split(match["body"].replace("\\hline", "")) if row.strip(" &\n")]
    if match["name"] == "array" and not match["brace"]:
        return rows[0].strip() if len(rows) == 1 and "&" not in rows[0] else match.group()
    if match["name"] in ("cases", "dcases", "rcases", "array"):
        cases = [_case(row) for row in rows]
        if len(rows) > 1 and all(cases):
            written = " \\\\ ".join(f"{value} & {condition}" for value, condition in filter(None, cases))
            return f"\\begin{{cases}}{written}\\end{{cases}}"
        if match["brace"] and not all(_RELATION_SIGN.search(row) for row in rows):
            return match.group()
    joined = ""
    for row in (row.replace("&", " ").strip(" ,;\n") for row in rows):
        joined += (" " if _CONTINUES.match(row) else ", ") + row if joined else row
    return joined or " "


def _case(row: str) -> tuple[str, str] | None:
    """(value, condition) of one line of a definition by cases, None for an equation."""
    value, mark, condition = row.partition("&")
    if not mark:
        start = _STARTS.search(row)
        value, condition = (row[: start.start()], row[start.start() :]) if start else (row, "")
    value, condition = value.strip().rstrip(","), condition.replace("&", " ").strip(" ,;.\n")
    defined = value.strip() and condition and not condition.startswith(("=", "<", ">"))
    return (value.strip(), condition) if defined else None


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
WORD_FUNCTIONS = (
    "arcsin|arccos|arctan|arccot|sinh|cosh|tanh|coth|sin|cos|tan|cot|sec|csc|ln|log|lg|exp|max|min|gcd|lcm|det|deg|cis"
)
SPACES = re.compile(r"(?:(?<!\\)\\[,;:> ]|\\q?quad(?![a-zA-Z])|~|\\(?:thin|med|thick)space(?![a-zA-Z])|\s)+")


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


_ABOVE = {"choose": "binom", "over": "frac"}
_MACROS = rules(
    (r"\\(?:text)?color\s*\{[^{}]*\}|\\(?:left|right)\s*\.", ""),
    (_REMOVED, lambda match: " " if match["mark"] else ""),
    (r"\\(?:text(?:rm|bf|it|sf|tt|normal|up)?|mbox|hbox|mathrm|textnormal|operatorname\*?)\s*\{([^{}]*)\}", _spaced),
    (rf"\\text\{{({WORD_FUNCTIONS})\}}(?=\s*(?:[({{_^\\]|\d|[a-z](?![a-zA-Z])))", r"\\\1 "),
    (r"\\text\{([ie])\}", r"\1"),
    (r"\\text\{\}", " "),
    (r"\\text\{([.,])\}", r"\1"),
    (r"\\text\{(\d[\d,]*(?:\.\d+)?)\}|\\text\{(\d+)(?:st|nd|rd|th)\}", r"\1\2"),
    (r"\\text\{ ?([A-H](?:(?:, ?(?:and |or )?| and | or | ?& ?)[A-H])+) ?\}",
     lambda match: ", ".join(re.findall("[A-H]", match[1]))),
    (r"(?<=\d) ?(?:\^ ?\{? ?\\text\{(?:st|nd|rd|th)\} ?\}?|\\text\{(?:st|nd|rd|th)\})", " "),
    (r"\{([^{}]*)\\(choose|over)(?![a-zA-Z])([^{}]*)\}",
     lambda match: f"\\{_ABOVE[match[2]]}{{{match[1].strip()}}}{{{match[3].strip()}}}"),
    (r"\\(vec|overrightarrow|hat|widehat|bar|tilde|overline)(?:\s+|(?=\{))"
     r"(?:\{\s*\{?([a-zA-Z]{1,2})\}?\s*\}|([a-zA-Z])(?![a-zA-Z]))", _accented),
)  # fmt: skip
r"""\mathrm{cm} as \text{cm}, {n \choose k} as \binom{n}{k}; without sizes and fonts."""
_FRACTION = re.compile(r"\\[dtc]?(frac|binom)(?![a-zA-Z])\s*")
_BRACED_ROOT = (
    r"\\sqrt\s*(\[[^\[\]]*\])?\s*(\d|[a-zA-Z]|\\[a-zA-Z]+)",
    lambda match: f"\\sqrt{match[1] or ''}{{{match[2]}}}",
)
_ARGUMENTS_BRACED = rules(_BRACED_ROOT, (r"\\frac\{\\text\{([^{}]*)\}\}\{\\text\{([^{}]*)\}\}", r"\\text{\1/\2}"))


def _with_arguments(text: str) -> str:
    r"""Braces around the arguments of \frac and \binom: `\frac12`, `\frac 1{x}`."""
    text, *pieces = _FRACTION.split(text)
    for name, piece in zip(pieces[::2], pieces[1::2], strict=True):
        first, rest = _argument(piece)
        second, rest = _argument(rest)
        text += f"\\{name}{{{first}}}{{{second}}}" + rest if first and second else f"\\{name}" + piece
    return text


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


_MODULE = r"(?<![a-zA-Z\\{])(?:(?:np|math|numpy|sp|sympy)\.)?"
_NAMES = "alpha|beta|gamma|delta|theta|lambda|sigma|omega|phi|pi|infty|rho|tau"
_PLAIN_INFINITY = rules(
    (r"(?i)(?:\\text\{ ?)?\b(negative|minus|positive|plus) (?:infinity|inf)\b ?\}?",
     lambda match: f"{'-' * (match[1].lower() in ('negative', 'minus'))}\\infty "),
    (r"(?i)(?<![a-zA-Z\\])(?:infinity|inf|oo)(?![a-zA-Z])|\\text\{(?:infinity|inf)\}", r"\\infty "),
)  # fmt: skip
_PLAIN_NOTATION = rules(
    (r"(?<![a-zA-Z\\])sqrt(?=\s*[{\d])", r"\\sqrt"),
    (rf"{_MODULE}(a(?:rc)?(?:sin|cos|tan)h?|{WORD_FUNCTIONS})(?=\s*[({{\\\d]|\s+[a-zA-Z]\b|_|\^)",
     lambda match: "\\" + re.sub(r"^a(?=sin|cos|tan)", "arc", match[1]) + " "),
    (rf"{_MODULE}({_NAMES})(?![a-zA-Z])", r"\\\1 "),
    _BRACED_ROOT,
)  # fmt: skip
"""sqrt(2) and np.arcsin(x) as LaTeX commands, pi and infinity as symbols."""
_ESCAPES = {"\f": "\\f", "\b": "\\b", "\v": "\\v", "\a": "\\a"}
"""Control characters that a JSON or Python string made of \\frac, \\boxed, \\vec and \\alpha."""
_CONTROL = str.maketrans({**_ESCAPES, "\0": " ", "\u200b": "", "\ufeff": "", "\u2061": "", "\u00a0": " "})
_CONTROL_SPACE = re.compile(r"(?<!\\)\\(?: |$)")
_BEFORE = rules(
    (r"\\(?:text|mathrm|mbox|textrm)\s*\{\s*(\\\$|€|£|¥|₹)", r"\1\\text{"),
    (r"(\\(?:text|mathrm|mbox|textrm)\s*\{[^{}]*)\^\s*\{(-?\d)\}", r"\1}^{\2}\\text{"),
)
_CHARACTERS = rules(
    (r"\{,\}\s*|,\s*\\!\s*", ","), (r"\{:\}", ":"), (r"\\\$", r"\\text{dollar}"), (r"\$", " "), (r"\\%", "%")
)  # fmt: skip
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
_COMMANDS: dict[str, str] = {
    name: written
    for names, written in {
        "lnot neg": "\\not ", "nmid": "\\not \\mid ", "leqslant le leqq": "\\leq ", "geqslant ge geqq": "\\geq ",
        "lt": "<", "gt": ">", "colon ratio": ":", "varnothing empty": "\\emptyset ", "lbrace": "\\{", "rbrace": "\\}",
        "dots dotsb dotsc dotsi dotsm ldots cdots ddots hdots": "\\ldots ", "lbrack": "[", "rbrack": "]",
        "degree textdegree": "^{\\circ}", "bmod pmod mod": "\\mod ", "lg": "\\log_{10}", "imath jmath": "i",
        "mid": "\\mid ", "Rightarrow Longrightarrow implies": "\\implies ", "lvert rvert vert": "|",
    }.items()
    for name in names.split()
}  # fmt: skip
_SYNONYMS = rules(
    (r"\\not\s*=|\\ne(?![a-zA-Z])|!=|\\not\s*\\eq(?![a-zA-Z])|=\s*/\s*=", r"\\neq "),
    (r"\\not\s*\\in(?![a-zA-Z])", r"\\notin "),
    (r"\\not\s*<|\\nless(?![a-zA-Z])", r"\\geq "),
    (r"\\not\s*>|\\ngtr(?![a-zA-Z])", r"\\leq "),
    (r"\\(?:not\s*\\leq?|nleq)(?![a-zA-Z])", ">"),
    (r"\\(?:not\s*\\geq?|ngeq)(?![a-zA-Z])", "<"),
    (r"<=|=<", r"\\leq "),
    (r">=", r"\\geq "),
    (r"\\([a-zA-Z]+)", lambda match: _COMMANDS.get(match[1], match.group())),
    (r"\.\.\.+", r"\\ldots "),
    (r"\\(?:var)(?=epsilon|phi|theta|rho|sigma)", r"\\"),
    (r"\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})", r"^{\\circ}"),
    (r"\\tbinom|\\dbinom", r"\\binom"),
    (r"(?<![a-zA-Z\\])rac(?=\{)", r"\\frac"),
    (r"\\mathbb\s*([A-Z])", r"\\mathbb{\1}"),
    (r"\\mathbb\{R\} ?(?:\^ ?(?:\+|\{ ?\+ ?\})|_ ?\{ ?> ?0 ?\})", r"(0,\\infty )"),
    (r"\*\*", "^"),
    (r"\*", r" \\cdot "),
    (r"\^\s*\(([^()]*)\)|\^\s*(-?\d{2,}|-\d|-[a-zA-Z])", r"^{\1\2}"),
    (r"(?<![\d.,])\d{1,3}(?: \d{3})+(?!\d|\s*(?:/|\\frac))", lambda match: match.group().replace(" ", "")),
)
_LAST = rules(
    (r"(?<![\d.])(\d{1,3}) ?\^\{\\circ\} ?(\d{1,2}) ?(?:'|\^\{\\prime\})$",
     lambda match: f"\\frac{{{60 * int(match[1]) + int(match[2])}}}{{60}}^{{\\circ}}"),
    (SPACES, " "),
    (r"\\frac\{((?:(?!\\(?:sin|cos|tan|cot|sec|csc))[^{}])*)\^\{\\circ\}\}\{([^{}]*)\}", r"\\frac{\1}{\2}^{\\circ}"),
)  # fmt: skip
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
    text = text if text.isprintable() else text.translate(_CONTROL)
    if "\\ " in text or text.endswith("\\"):  # a space in LaTeX; at an end it would be left as a lone backslash
        text = _CONTROL_SPACE.sub(" ", text)
    text = flattened(text)
    if not any(environment in text for environment in ("matrix", "array", "cases")):
        text = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", text)
    text = rewrite(strip_delimiters(balanced(to_latex(rewrite(text, _BEFORE)))), _CHARACTERS)
    if "\\" in text:
        text = rewrite(_with_arguments(rewrite(text, _MACROS)), _ARGUMENTS_BRACED)
    text = _rooted(rewrite(SPACES.sub(" ", text).strip(), _PLAIN_INFINITY), _PLAIN_ROOT)
    text = rewrite(rewrite(text, _PLAIN_NOTATION), _SYNONYMS)
    text = _unwrapped(strip_delimiters(rewrite(_INTEGERS.sub("", text) or text, _LAST)))
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
