r"""Finding the unit in an answer: `864 \text{ inches}^2`, `18.90 dollars`, `\$36`, `62.5\%`, `90^\circ`, `48 km/h`."""

import re
from fractions import Fraction
from itertools import pairwise

from tepo.problems.grader.text.units import Unit, known, parse_unit

_TOKEN = re.compile(
    r"\\text\{[^{}]*\}|\^\{\\circ\}|\\[a-zA-Z]+|\\.|[a-zA-Z$¢]+|\^\s*(?:\{-?\d\}|-?\d)|\d+|.", re.DOTALL
)
_CURRENCY = re.compile(
    r"(-?)\s*(?:US|USD)?\s*\\text\{(dollar|euro|pound|yen|rupee|Rs\.?|USD|US dollar)s?\}\s*(-?)\s*(?=[\d.\\(])"
)
_PART = r"(\d+(?:\.\d+)?) ?(?:\\text\{ ?([a-zA-Z. ]+?),?(?: and)? ?\}|([a-zA-Z]+)\.?)"
_PARTS = re.compile(_PART), re.compile(rf"{_PART}(?: ?,? ?(?:\\text\{{,? ?and\}}|and)? ?{_PART})+")
_SCALE = re.compile(r"\^\{\\circ\}\s*(?:\\text\{\s*([CF])\s*\}|([CF])(?![a-zA-Z]))")
_HEAD_END = re.compile(r"(?:[\d.)}\]!|]|\\(?:pi|infty))\s*-?\s*$")
_TRIGONOMETRIC = re.compile(r"\\(?:cis|sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_NO_UNITS = (
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp lim max gcd lcm det deg mod"
    " and or if is choose for where when with i e x y z n k"
)
_FUNCTIONS = frozenset(_NO_UNITS.split())


def quantity(text: str, *, letters: bool = False) -> tuple[str, Unit | None]:
    """(number, unit or None) of canonical text. The unit is a trailing word in `\\text{}`, a trailing unit word, a
    degree or per cent sign, or a leading currency. A lone bare letter (6m) is a variable, not a unit, unless `letters`
    (the other side has a unit)."""
    match = _CURRENCY.match(text)
    if match:
        word = match[2].lower().rstrip(".")
        return (match[1] or match[3]) + text[match.end() :].strip(), parse_unit(
            "dollar" if "usd" in word or "us " in word else word
        )
    text = _SCALE.sub(lambda found: "\\text{deg" + (found[1] or found[2]).lower() + "}", text)
    start = _tail(text)
    if start is None:
        return text, None
    head, tail = text[:start].strip(), text[start:]
    if _TRIGONOMETRIC.search(head):
        return text, None
    unit = parse_unit(re.sub(r"\\text\{([^{}]*)\}", r" \1 ", tail)) if _is_unit(tail, letters=letters) else None
    return (text, None) if unit is None else (head.rstrip("- "), unit)


def one_amount(text: str) -> str | None:
    r"""2 \text{hours} 30 \text{minutes} as \frac{5}{2}\text{hours}: parts of one dimension,
    each unit smaller than the one before. None for anything else."""
    part, whole = _PARTS
    if not whole.fullmatch(text):
        return None
    found = [(Fraction(match[1]), match[2] or match[3]) for match in part.finditer(text)]
    units = [parse_unit(word) for _, word in found if known(word)]
    sizes = [unit.factor for unit in units if unit and unit.dimension == (units[0] and units[0].dimension)]
    if len(sizes) < len(found) or any(small >= large for large, small in pairwise(sizes)):
        return None
    total = sum((count * size for (count, _), size in zip(found, sizes, strict=True)), Fraction(0)) / sizes[0]
    return f"\\frac{{{total.numerator}}}{{{total.denominator}}}\\text{{{found[0][1]}}}"


def _tail(text: str) -> int | None:
    """Where the trailing unit begins: the longest run of unit-like tokens at the end that follows a number."""
    tokens = [(match.start(), match.group()) for match in _TOKEN.finditer(text)]
    start = None
    for place in range(len(tokens) - 1, -1, -1):
        position, token = tokens[place]
        if _is_word(token):
            if _HEAD_END.search(text[:position]) or (token.startswith("\\text") and text[:position].strip()):
                start = position
        elif token in ("2", "3") and place and known(tokens[place - 1][1]):
            continue
        elif not (
            token.isspace()
            or token in "/.-"
            or token in ("\\cdot", "per")
            or re.fullmatch(r"\^\s*(?:\{-?\d\}|-?\d)", token)
        ):
            break
    return start


def _is_word(token: str) -> bool:
    if token.startswith("\\text") or token in ("^{\\circ}", "%", "$", "¢"):
        return True
    return token.isalpha() and token.isascii() and (token == "N" or token.lower() not in _FUNCTIONS)


def _is_unit(tail: str, *, letters: bool) -> bool:
    """A lone bare letter and short unknown bare words are variables;
    what stands in `\\text{}` or is in the table is a unit."""
    if "\\text" in tail or "^{\\circ}" in tail or "%" in tail:
        return True
    words = re.findall(r"[a-zA-Z$¢]+", tail)
    if len(words) == 1 and len(words[0]) == 1:
        return words[0] in "$¢" or (letters and known(words[0]) is not None)
    return all(known(word) or (len(word) >= 3 and len(words) <= 4) or word.lower() == "of" for word in words)
