"""Words around and inside amounts: 3 million, 2 hours 30 minutes, 1 in 4, all real numbers except 2; remarks that
change nothing ("the minimum is", "(since n > 0)", "(≈ 4.47)"), and words that do: "10 or more"."""

import re
from fractions import Fraction
from itertools import pairwise

from tepo.problems.grader.brackets import encloses, rewrite, rules
from tepo.problems.grader.units import DOUBTS, HEDGES, REFUSALS, known, parse_unit

_NO_ANSWER = (
    rf"{REFUSALS}|not (?:an? |the )?(?:\w+ )?"
    r"(?:answer|solution|root|valid|correct|right|true|possible|allowed|accepted)"
)
_NAMED = (
    rf"(?![^{{}}]*\b(?i:{_NO_ANSWER})\b)"
    r"(?! ?(?i:no(?!\.)|none|neither|nothing|[\d.]+|(?:any|every)\w*(?: \w+)? but)\b)(?![^{}]*\b(?:is|are) \d)"
)
"""Stands before the words that lead in: not those that say that the answer is none, or another."""
_ASSURED = (
    rf"(?![^{{}}]*\b(?i:{_NO_ANSWER}|{DOUBTS}|if|also|another|as well|for (?:even|odd|some)|no(?= ?[,.;:!)])"
    r"|not \\?[\dA-Z])\b)"
)
"""Stands before the words of a remark: not those of one that takes the answer back or binds it to cases."""


_END = r"\)?$"
_START = r"(?<=.) ?,? ?\(?"
_QUANTIFIERS = re.compile(
    rf"{_START}\\forall ?[a-z](?: ?\\in ?\\mathbb\{{[A-Z]\}})?{_END}"
    rf"|{_START}\\text\{{,? ?for (?:all|any|every|each)(?: real| positive| integers?)*(?: numbers?)?\}}"
    rf" ?[a-z](?: ?\\in ?\\mathbb\{{[A-Z]\}})?{_END}"
    rf"|{_START}\\text\{{,? ?(?:for (?:some|any)|with|where)(?: (?:an?|real|arbitrary))* constants?\}} ?[a-zA-Z]{_END}"
    rf"|{_START}\\text\{{,? ?where\}} ?[a-zA-Z] ?\\text\{{is [a-z ]*constant\}}{_END}"
)
_DECLARED = re.compile(
    r"(?<![a-zA-Z\\])([a-z])\s*(?:\\in(?![a-zA-Z])|∈)\s*(?:\\(?:mathbb|mathbf)\s*\{?\s*[ZN]|ℤ|ℕ)|integers?\s*\}\s*\$?([a-z])(?![a-zA-Z])"
    r"|(?<![a-zA-Z\\])([a-z])\s*\$?\s*\\text\{\s*is (?:an|any) integer"
)
_WORDS = re.compile(r"\\text\{[^{}]*\}|\\[a-zA-Z]+")
_LETTER = re.compile(r"[a-zA-Z]")
_OPEN_IN_TEXT = re.compile(r"\\text\{ ?\(([^{}()]+)\}")
_ABOUT = r"approximately|approx\.?|about|roughly"
_ASIDE = re.compile(
    rf"(?<=[^(,;\s]) ?(?P<group>\( ?(?:\\approx(?![a-zA-Z])"
    rf"|\\text\{{ ?(?:{_ABOUT}|since|because|as|i\.e\.?|that is|using|from)\b[^{{}}]*\}})(?!.*\b(?:{HEDGES})\b).*\))$"
)
_ALTERNATIVE = re.compile(
    r"(?<=[^(,;\s]) ?(?P<group>\( ?\\text\{ ?(?:or|equivalently|or equivalently),?\} ?(?P<other>.*)\))$"
)
_REMARKS = rules(
    (r"\\text\{ ?\((or|equivalently|or equivalently),? ([^{}()]+)\)\}$", r"(\\text{\1} \2)"),
    (rf"^\\text\{{{_NAMED}[^{{}}]*\b(?:is|are|equals?):?\}} ?(?=.)"
     rf"|^\\text\{{{_NAMED}[^{{}}]*\}} ?[a-zA-Z] ?\\text\{{(?:is|equals?):?\}} ?(?=.)"
     rf"|^\\text\{{{_NAMED}"
     r"(?![^{}]*\b(?i:not|base|at least|at most|than)\b)[^{}]*[a-zA-Z]{2,}:\} ?(?=.)", ""),
    (rf"(?<=.) ?\\text\{{,? ?\({_ASSURED}"
     r"(?![^{}]*\b(?:base|mod|binary|ternary|octal|decimal|hex(?:adecimal)?)\b)([^{}()]*)\)\}$",
     lambda match: match.group() if " " not in (word := match[1].strip()) and (len(word) < 4 or known(word)) else ""),
    # (a remark of one word may be a unit or a name: (cm), (x))
    (rf"(?<=[^(,;\s]) ?,? ?\\text\{{,? ?(?:or|which is|i\.e\.?)? ?(?:{_ABOUT})\}} ?\d[\d.]*$", ""),
)  # fmt: skip
"""Lead-ins and remarks that go; (or Y) becomes a second spelling: X or Y."""
_BOUNDS = {
    "\\geq": "at least|no less than|no fewer than|not less than|a minimum of",
    "\\leq": "at most|no more than|not more than|up to|a maximum of",
    ">": "more than|greater than|larger than|over", "<": "less than|fewer than|smaller than|under",
}  # fmt: skip
_BEFORE = {
    sign: re.compile(rf"(?i)^(?P<name>[a-z] ?)?\\text\{{(?:is |are )?(?:{words})\}} ?(?=.)|^(?:{words}) (?=\d)")
    for sign, words in _BOUNDS.items()
}
_AFTER = re.compile(
    r"^(?P<value>.*[\d})]) ?\\text\{(?P<unit>[a-zA-Z ]*?),? ?"
    r"(?:\b(?:or|and) (?:(?P<more>more|greater|above|over|higher|up|larger)|less|fewer|below|under|lower|smaller)"
    r"|\bat (?:(?P<least>least)|most))\}$"
)


def declared_integer(text: str) -> str | None:
    r"""The letter that an answer (as written) declares an integer: k in 2k\pi, k \in \mathbb{Z}."""
    match = _DECLARED.search(text) if "\\in" in text or "integer" in text or "∈" in text else None
    return match and (match[1] or match[2] or match[3])


def renamed_integer(gold: str, answer: str, letter: str) -> str:
    """The canonical answer with its integer called as in the gold,
    if one side declares it and it is all that differs in name."""
    mine, theirs = (set(_LETTER.findall(_WORDS.sub(" ", text))) for text in (gold, answer))
    ours, other = mine - theirs, theirs - mine
    if len(ours) != 1 or len(other) != 1 or letter not in ours | other or "\\text" in answer:
        return answer
    return re.sub(rf"(?<![a-zA-Z\\]){min(other)}(?![a-zA-Z])", min(ours), answer)


def without_remarks(text: str) -> str:
    """Canonical text without a lead-in and without remarks behind; (or Y) becomes a second spelling: X or Y."""
    if "\\text" not in text and "\\approx" not in text:
        return text
    text = rewrite(text, _REMARKS)
    if not text.endswith(")"):
        return text
    text = _OPEN_IN_TEXT.sub(r"(\\text{\1}", text)
    for pattern in (_ASIDE, _ALTERNATIVE):
        match = pattern.search(text)
        if match and encloses(match["group"]):
            text = text[: match.start()] + (f" \\text{{or}} {match['other']}" if "other" in pattern.groupindex else "")
    return text


def bounded(text: str) -> str:
    r"""`at least 10` and `10 or more` as \geq 10: a bound is no value."""
    if "\\text" not in text and not text[:1].isalpha():
        return text
    for sign, pattern in _BEFORE.items():
        if match := pattern.match(text):
            return f"{match['name'] or ''}{sign} {text[match.end() :]}"
    match = _AFTER.match(text)
    if not match:
        return text
    unit = f"\\text{{{match['unit']}}}" if match["unit"] else ""
    sign = "\\geq" if match["more"] or match["least"] else "\\leq"
    return f"{sign} {match['value']}{unit}"


_CHANCE = re.compile(r"(\d+) ?(?:\\text\{(?:in|out of)\}|in|out of) ?(\d+)")
_MAGNITUDE = re.compile(
    r"(?<![\d.,])((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)"
    r" ?(?:(\\text\{) ?)?(hundred|thousand|million|billion|trillion)s?\b(?(2) ?([^{}]*)\})"
)
_AND = re.compile(r" ?,? ?(?:\\text\{,? ?and\}|\band\b) ?")
_COUNTED = re.compile(r"(?<=\d) ?\\text\{([a-zA-Z ]+?),? (and|or)\}(?= ?\d)")
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_BRACED = re.compile(r"(\\(?:max|min|gcd|lcm)) ?\\\{([^{}]*)\\\}")
_EXCEPT = re.compile(
    r"^\\text\{(?:all |any |the )?(?:real numbers|reals)(?: [a-z])?"
    r" (?:except|other than|but|excluding)(?: for)?\} ?(.+)$"
)
_SUCH_THAT = re.compile(r"^(\\\{[^:|]*)(?<!\\)[:|]([^:|]*\\\})$")
_PART = r"(\d+(?:\.\d+)?) ?(?:\\text\{ ?([a-zA-Z. ]+?),?(?: and)? ?\}|([a-zA-Z]+)\.?)"
_ONE_PART, _SEVERAL_PARTS = re.compile(_PART), re.compile(rf"{_PART}(?: ?,? ?(?:\\text\{{,? ?and\}}|and)? ?{_PART})+")


def words_as_notation(text: str) -> str:
    """Words around and inside amounts: 3 million, 2 hours 30 minutes, 1 in 4, "the value is",
    remarks in parentheses."""
    text = _COUNTED.sub(r"\\text{\1} \\text{\2}", _SUCH_THAT.sub(r"\1\\mid \2", text))
    if "\\text" in text or "\\forall" in text:  # f(x)=2x \text{for all} x, cx \text{for some constant} c
        text = _QUANTIFIERS.sub("", text)
    text = _BRACED.sub(r"\1(\2)", text)
    if excepted := _EXCEPT.match(text):
        return f"\\mathbb{{R}} \\setminus \\{{{re.sub(_AND, ', ', excepted[1])}\\}}"
    text = bounded(_MAGNITUDE.sub(_written_out, without_remarks(text)))
    chance = _CHANCE.fullmatch(text)
    return f"\\frac{{{chance[1]}}}{{{chance[2]}}}" if chance else one_amount(text) or text


def _written_out(match: re.Match[str]) -> str:
    """3.2 million as 3200000, the unit kept."""
    units, _, decimals = match[1].replace(",", "").partition(".")
    power = _POWERS[match[3]]
    if len(decimals) > power:
        return match.group()
    number = (units + decimals.ljust(power, "0")).lstrip("0") or "0"
    return f"{number} \\text{{{match[4]}}}" if match[4] else number


def one_amount(text: str) -> str | None:
    r"""2 \text{hours} 30 \text{minutes} as \frac{5}{2}\text{hours}: parts of one dimension,
    each unit smaller than the one before. None for anything else."""
    if not _SEVERAL_PARTS.fullmatch(text):
        return None
    parts = [(Fraction(match[1]), match[2] or match[3]) for match in _ONE_PART.finditer(text)]
    units = [parse_unit(word) for _, word in parts if known(word)]
    sizes = [unit.factor for unit in units if unit and unit.dimension == (units[0] and units[0].dimension)]
    if len(sizes) < len(parts) or any(small >= large for large, small in pairwise(sizes)):
        return None
    total = sum((count * size for (count, _), size in zip(parts, sizes, strict=True)), Fraction(0)) / sizes[0]
    return f"\\frac{{{total.numerator}}}{{{total.denominator}}}\\text{{{parts[0][1]}}}"
