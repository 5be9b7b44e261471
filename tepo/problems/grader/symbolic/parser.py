r"""Canonical answer text to sympy, through latex2sympy2_extended (the parser of math-verify).

Imported by workers only."""

import math
import re
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, normalize_latex
from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy
from math_verify.parser import get_last_eq

from tepo.problems.grader.brackets import rewrite, rules
from tepo.problems.grader.symbolic.allowance import count, remembered

_BIT_PAIRS = 300_000  # of two integers, that one tick brings together


class Gcd(sympy.Function):
    compute: Any = math.gcd

    @classmethod
    def eval(cls, *numbers: Any) -> sympy.Integer | None:
        if not all(isinstance(number, sympy.Integer) for number in numbers):
            return None
        lengths = sorted(number.p.bit_length() for number in numbers)
        count.compute(len(lengths) * lengths[-1] * lengths[-2:][0] // _BIT_PAIRS)
        return sympy.Integer(cls.compute(*(number.p for number in numbers)))


class Lcm(Gcd):
    compute = math.lcm


_CONFIG = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
)
"""Like math-verify's own, without its unit removal (units are compared before)
and its box search (done in `extraction`)."""

_GROUP = r"\{(?:[^{}]|\{[^{}]*\})*\}"
_INDEX = rf"\s*_\s*(?:{_GROUP}|\w)"
_GREEK = r"\\(?:pi|theta|alpha|beta|gamma|phi|omega|lambda|mu|sigma|tau|delta|rho)(?![a-zA-Z])"
_FACTOR = rf"(?:\d++|[a-zA-Z]|{_GREEK}|\\frac{_GROUP}{_GROUP}|\\sqrt(?:\[\d+\])?{_GROUP}|{_GROUP})(?:[_^]{_GROUP})*"
_FUNCTION = rf"\\(?:(?:arc)?(?:sin|cos|tan|cot|sec|csc)|sinh|cosh|tanh|ln|log|exp)(?![a-zA-Z])(?:\s*[_^]\s*{_GROUP})*"
_SPACED_DIGITS = re.compile(r"(?<![_^\d.])\d+[ \"]+\d+(?!\d*\s*(?:/|\\frac))")
_KEPT = re.compile(r"\\(?:log|sum|prod|int|lim|max|min|gcd|lcm|ln|sup|inf|text|operatorname|mathbb|begin|end)(?![a-z])")


def _symbol(match: re.Match[str]) -> str:
    command = match.group()
    if match[3]:
        return _named(command, "")
    if match[1]:
        return _named(match[1], _plain(match[2]))
    if "_" not in command or _KEPT.match(command):
        return command
    name, _, index = command.partition("_")
    return f"{name.strip()}_{{{_plain(index)}}}"


def _named(letter: str, index: str) -> str:
    """A letter with a subscript of letters and digits that marks capitals;
    e, which alone is Euler's number, becomes another."""
    name = "z" if letter in "eE" else letter.lower()
    return f"{name}_{{{index}{'euler' if letter in 'eE' else ''}{'cap' if letter.isupper() else ''}}}"


def _plain(index: str) -> str:
    """A subscript as letters and digits: {\\text{red}} -> red, {n+1} -> nplus1; capitals are marked."""
    index = index.replace("\\text", "").replace("\\triangle", "").replace("+", "plus").replace("-", "minus")
    return "".join(
        character.lower() + "cap" if character.isupper() else character for character in index if character.isalnum()
    )


_RESPELT = rules(
    (r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda match: match.group().replace(",", "")),
    (r"(\d+(?:\.\d+)?|\([^()]*\)|[a-zA-Z])\s*\^\{\\circ\}", r"(\\frac{\1\\pi}{180})"),
    (r"(?<![\w.])(\d*)\.(\d+)(?![\d.])",
     lambda match: f"(\\frac{{{int(match[1] + match[2])}}}{{{10 ** len(match[2])}}})"),
    (r"([\^_])\s*([a-zA-Z0-9])", r"\1{\2}"),
    (r"\\(vec|hat|bar|tilde|overline)\{([a-zA-Z]+)\}", lambda match: f"{match[2][0]}_{{{match[2][1:]}{match[1]}}}"),
    (r"(\d+|(?<![a-zA-Z])[a-zA-Z])!\s*\^", r"(\1!)^"),
    (r"\{\s*([^{}]+?)\s*\\choose\s*([^{}]+?)\s*\}", r"\\binom{\1}{\2}"),
    (r"\\(sin|cos|tan|cot|sec|csc)\s*\^\s*\{\s*-\s*1\s*\}", r"\\arc\1 "),
    (r"\\sqrt\s*\[(\d*[13579])\]\s*\{\s*-([^{}+-]*)\}", r"(-\\sqrt[\1]{\2})"),
    # what stands before a written multiplication sign: \sin x \cdot y is (\sin x) y, and \sin(xy) to the parser
    (rf"({_FUNCTION})\s*((?:{_FACTOR}\s*)+)(?=\\(?:cdot|times)(?![a-zA-Z]))", r"\1(\2)"),
    # numbers side by side, (2)(3) or 3\binom{4}{2}, are a mixed number to the parser: it adds them
    (rf"(\\binom\s*{_GROUP}\s*{_GROUP}|\\frac\{{\d+\}}\{{\d+\}})\s*(?=[\d(]|\\(?:binom|frac)(?![a-zA-Z]))",
     r"\1 \\cdot "),
    (r"([\d)]|\\pi)\s*(?=\(|\\binom(?![a-zA-Z]))|(\))\s*(?=\d|\\frac(?![a-zA-Z]))", r"\1\2 \\cdot "),
    (r"\\cis\s*(?:\(((?:[^()]|\([^()]*\))*)\)|\{([^{}]*)\}|(\\frac\{[^{}]*\}\{[^{}]*\}|\\[a-zA-Z]+|[a-z](?![a-zA-Z])))",
     r"e^{i(\1\2\3)}"),
    (r"%", r"\\cdot\\frac{1}{100}"),
    (r"'", r"^{\\prime}"),
    (r"\\(?:text|operatorname|mathbb|begin|end)\s*\{[^{}]*\}" rf"|\\[a-zA-Z]+(?:{_INDEX})?"
     rf"|([a-zA-Z])\s*_\s*({_GROUP}|\\[a-zA-Z]+|\w)|([A-Z])", _symbol),
)  # fmt: skip
"""What the parser gets wrong: decimals as exact fractions, degrees as radians, capitals (the parser folds case) and
wordy subscripts as plain subscripts."""


@remembered
def to_sympy(text: str) -> sympy.Basic | sympy.MatrixBase | None:
    """The expression a canonical text means, None when the parser cannot read it. i is the imaginary unit."""
    if _SPACED_DIGITS.search(text):  # 4 2 would be read as 42
        return None
    latex = normalize_latex(rewrite(text, _RESPELT), config=_CONFIG)
    parsed = _parse(latex)
    if parsed is None and (last := get_last_eq(latex)) != latex:
        parsed = _parse(last)
    if parsed is None:
        return None
    if "!!" in text and "!)!" not in text:  # the parser reads n!! as (n!)!
        parsed = parsed.replace(
            lambda part: isinstance(part, sympy.factorial) and isinstance(part.args[0], sympy.factorial),
            lambda part: sympy.factorial2(part.args[0].args[0]),
        )
    units = {symbol: sympy.I for symbol in getattr(parsed, "free_symbols", ()) if symbol.name == "i"}
    return parsed.xreplace(units) if units else parsed


class _Converter(_Latex2Sympy):
    """The parser, with divisors and multiples of integers where it has those of polynomials."""

    def handle_gcd_lcm(self, name: str, arguments: list[sympy.Expr]) -> sympy.Expr:
        return (Gcd if name == "gcd" else Lcm)(*arguments)


def _parse(latex: str) -> sympy.Basic | sympy.MatrixBase | None:
    try:
        parsed = _Converter(is_real=True).parse(latex)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # the parser raises whatever it meets; all of it means "not readable"
        return None
    return parsed if isinstance(parsed, (sympy.Basic, sympy.MatrixBase)) else None
