r"""Answers in words: `\text{east}`, `Evelyn`, no solution, two thirds."""

import re

from tepo.problems.grader.kinds.protocol import Comparison
from tepo.problems.grader.text.split import TEXT, relation
from tepo.problems.grader.text.units import HEDGES

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
    "half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "twelfth": 12,
}  # fmt: skip
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
    "function", "number", "integer", "triangle", "series", "sequence", "integral", "matrix", "wins", "is winner",
    "has winning strategy",
)  # fmt: skip
VERDICTS = ("yes", "no", "true", "false")
_SAID = re.compile(
    rf"(?P<word>{'|'.join(VERDICTS)})(?:(?: ?[,.;:!()-]+ ?| (?=because\b|since\b))(?P<why>\S.*?))?[ .!)]*", re.DOTALL
)
_FEWER = "even|odd|prime|composite|large|small|big|sufficiently|non-?zero|other"
_ALL = rf"(?:all|every|each|any)\b(?!.*[<>\\]|.*\b(?:{_FEWER})\b)"
_CLAUSES = re.compile(r"[,.;:!?()-]+|\b(?:and|or|so|then|thus|hence|because|since|as)\b")
_REASON = re.compile(
    r"(?:because|since|as(?! (?:long|far|soon)\b)|by|due to|using|for (?:example|instance)|indeed"
    rf"|for {_ALL}|definitely|certainly|absolutely|of course|(?:without|no) doubt)\b"
)
_VERB = re.compile(
    r"\b(?:is|are|was|were|has|have|does|do|did|can|cannot|will|must|exists?|holds?|works?|(?:con|di)verges?|fails?|wins?"
    r"|follows?|implies|gives?|shows?|contradicts?|satisf(?:y|ies)|divides?|equals?)\b|n't\b"
)
_REFUTED = re.compile(rf"\b(?:{HEDGES}|wrong|incorrect|mistak\w*|as long as|only (?:if|when|for))\b")
_BOUND = re.compile(
    r"\b(?:iff?|only|when\w*|where\w*|while|provided|assum\w*|suppos\w*|subject|under|given|some\w*|most\w*|many"
    rf"|usually|often|almost|nearly|part(?:ly|ially)|certain|may|might|or|otherwise|without|for (?!{_ALL})|i|think"
    r"|guess|believe|hope|sure|seems?|likely|appears?)\b"
)
_DENIED = re.compile(
    r"\b(?:not|no(?! (?:counter-?example|exception|doubt|contradiction))|cannot|never|none|nothing|neither|fails?"
    r"|impossible|false|untrue)\b|n't\b"
)
_AFFIRMED = re.compile(
    r".*\b(?:is|are|does|do|did|can|will|has|have|exists?|holds?|works?|possible|true|correct|right|so|always)"
)
_NO_SOLUTIONS = re.compile(
    r"(?:there (?:is|are) )?no (?:real |integer |integral |positive )?solutions?(?: exists?)?"
    r"(?: (?:in|over|among) [a-z ]+)?"
)
_IDLE = re.compile(r"\b(?:an?|[Tt]he|[Aa]ll|[Aa]ny|[Ee]very|is|are)\b")


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
    plain = TEXT.sub(r"\1", text).strip()
    said = _SAID.fullmatch(plain.casefold())
    if said and _stands(said["word"], said["why"]):
        return said["word"]
    if not _WORDS.fullmatch(plain):
        return None
    letters = sum(character.isalpha() for character in plain)
    if letters < 2 or (
        plain == text and letters < 4 and plain.lower() not in ("yes", "no", "dne") and plain.lower() not in _NUMBERS
    ):
        return None
    parts = [
        _CARRIER.sub("", re.sub(r"[^\w]+", " ", _ARTICLE.sub(" ", part)).strip())
        for part in _LISTED.split(plain.casefold())
    ]
    if len(parts) == 1:
        return _number(parts[0]) or (
            _NO_SOLUTION if _NO_SOLUTIONS.fullmatch(parts[0]) else _SYNONYMS.get(parts[0], parts[0])
        )
    return ", ".join(sorted(_SYNONYMS.get(part, part) for part in parts if part))


def _stands(word: str, why: str | None) -> bool:
    """Does what stands behind yes, no, true or false leave it as it is? The same word, a reason and the statement in
    full do; another answer, a condition, an exception and a doubt do not."""
    if why is None or why == word:
        return True
    affirmed = word in ("yes", "true")
    others = ("no", "false", "not", "not true", "untrue") if affirmed else ("yes", "true")
    clauses = [_CARRIER.sub("", clause.strip()) for clause in _CLAUSES.split(why)]
    contradicted = any(clause in others or clause.split()[-1:] == [others[0]] for clause in clauses)
    if contradicted or _REFUTED.search(why) or (not affirmed and re.search(r"\byes\b", why)):
        return False
    if _REASON.match(why) or why == ("always" if affirmed else "never"):
        return True
    denied, affirming = _DENIED.search(why) is not None, _AFFIRMED.fullmatch(why) is not None
    agreed, opposed = (affirming, denied) if affirmed else (denied, affirming and not denied)
    return (agreed or _VERB.search(why) is not None) and not opposed and not _BOUND.search(why)


def _number(key: str) -> str | None:
    r"""Digits for a number in words (below a million), \frac{2}{3} for two thirds; None for other words."""
    thousands, group, names = 0, 0, key.split()
    for index, name in enumerate(names):
        count, part = _NUMBERS.get(name), _PARTS.get("half" if name == "halves" else name.removesuffix("s"))
        if count is not None and (
            group == 0 or group % 100 == 0 or (group % 10 == 0 and group % 100 >= 20 and count < 10)
        ):
            group += count
        elif name == "hundred" and group < 100:
            group = 100 * (group or 1)
        elif name == "thousand" and not thousands:
            thousands, group = 1000 * (group or 1), 0
        elif part and index and index == len(names) - 1 and not thousands and 0 < group < 20:
            return f"\\frac{{{group}}}{{{part}}}"
        else:
            return "\\frac{1}{2}" if names == ["half"] else None
    return str(thousands + group) if names else None


def without_articles(text: str) -> str:
    r"""The text with its words in lower case and without articles, "all" and "is":
    \text{All multiples of} 3 as \text{multiples of}3."""

    def plain(match: re.Match[str]) -> str:
        return f"\\text{{{' '.join(_IDLE.sub(' ', match[1]).split()).casefold() or match[1]}}}"

    return TEXT.sub(plain, text).replace("} ", "}").replace(" \\text", "\\text")


def same_words(gold: str, answer: str, compare: Comparison) -> bool | None:
    """By their keys; words beside mathematics only where they name a number or a set of numbers."""
    left, right = words(gold), words(answer)
    if left is not None and right is not None:
        short, long = sorted((left, right), key=len)  # odd beside odd function
        described = short not in ("yes", "no") and any(long == f"{short} {noun}" for noun in _DESCRIBED)
        return left == right or described
    if (left is None and right is None) or NUMBER_SETS.intersection((left, right)):
        return None
    word, other = (left, answer) if left is not None else (right, gold)
    if word and (word[0].isdigit() or word.startswith("\\frac")):
        return compare.same(word, other)
    if word == other.casefold():  # odd, written without \text{}, could be a product
        return True
    return None if relation(other)[1] else False
