r"""Kinds with a notation of their own: words (east, no solution, two thirds), choices, clock times, dates, ranges,
numbers with their base (101_2), ratios a : b : c."""

import re
from fractions import Fraction

from tepo.problems.grader.brackets import TEXT, cut, relation
from tepo.problems.grader.groups import DOTS, Comparison
from tepo.problems.grader.numbers import parse_number
from tepo.problems.grader.units import HEDGES

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
    match = _SAID.fullmatch(plain.casefold())
    if match and _stands(match["word"], match["why"]):
        return match["word"]
    if not _WORDS.fullmatch(plain):
        return None
    letters = sum(character.isalpha() for character in plain)
    short = plain == text and letters < 4 and plain.lower() not in ("yes", "no", "dne", *_NUMBERS)
    if letters < 2 or short:
        return None
    parts = [re.sub(r"[^\w]+", " ", _ARTICLE.sub(" ", part)).strip() for part in _LISTED.split(plain.casefold())]
    parts = [_CARRIER.sub("", part) for part in parts]
    if len(parts) == 1:
        none = _NO_SOLUTIONS.fullmatch(parts[0])
        return _number(parts[0]) or (_NO_SOLUTION if none else _SYNONYMS.get(parts[0], parts[0]))
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
        goes_on = group % 100 == 0 or (group % 10 == 0 and group % 100 >= 20 and (count or 0) < 10)
        if count is not None and goes_on:
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
    r"""\text{All multiples of} 3 as \text{multiples of}3: without articles, "all" and "is", in lower case."""
    text = TEXT.sub(
        lambda match: f"\\text{{{' '.join(_IDLE.sub(' ', match[1]).split()).casefold() or match[1]}}}", text
    )
    return text.replace("} ", "}").replace(" \\text", "\\text")


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


_CHOICE = re.compile(r"\(? ?(?P<letter>[A-Za-z]) ?\)?[.:]?")
_CHOSEN = re.compile(
    r"(?:\\text\{ ?\(?([A-Z])\)? ?[.:]? ?\}|\(([A-Z])\)|([A-Z])[.:)])(?:\\text\{\.\}|[.:,-])?\s*(?P<rest>.*)", re.DOTALL
)
_ANOTHER = re.compile(
    r"(?:\\text\{ ?)?(?:[/&;,]|[-+] ?\(?[A-H]\b|\([A-Ha-h]\)|(?:is|isn't|are|and|or|but|if|only if|wrong|incorrect"
    rf"|(?:because|since)\b.*\b(?:{HEDGES}))\b|unless|except|not (?=\\?\(?[A-Z\d\\]|\}})|\\(?:lor|land|vee|wedge)\b).*"
    r"|(?!(?:\\text\{ ?)?(?:because|since)\b)"
    r".*(?<![a-zA-Z}\\])(?:\([A-H]\)|[A-H][.:)]|\\text\{ ?\(?[A-H]\)?[.:]? ?\}).*"
    r"|.*\b(?:or|and)\b ?\}? ?[A-H]\b.*|[A-H](?: only)?",
    re.DOTALL,
)
"""What stands behind an option and is no value: another option, or a word that takes this one back."""
_OPTIONS = re.compile(r"[A-H](?:,? ?[A-H])+")
_OPTION = re.compile(r"(?:\\text\{ ?)?(?i:option|choice|answer|point) ?\}? ?(?=[(A-Z\\])")


def option_letter(text: str) -> tuple[str, bool] | None:
    """(letter, decorated) of a lone option letter; decorated means in parentheses or \\text{}."""
    bare = _OPTION.sub("", TEXT.sub(r"\1", text).strip()).removesuffix(" only")
    match = _CHOICE.fullmatch(bare)
    return (match["letter"], len(text) > 1) if match else None


def option_letters(text: str) -> str | None:
    """The letters of several options, in alphabetical order: ABD of `D, A, B` and of `ABD`. None for anything else,
    and for BDA, which is an order."""
    plain = TEXT.sub(r"\1", text)
    letters = re.findall("[A-H]", plain) if _OPTIONS.fullmatch(plain) else []
    ordered = sorted(set(letters))
    return "".join(ordered) if len(letters) == len(ordered) > 1 and ("," in text or letters == ordered) else None


def option_with_value(text: str) -> tuple[str, str] | None:
    """(letter, rest) of an option with its value behind it: `\\text{(C)} 12`, `C. 12`. None without a value."""
    match = _CHOSEN.fullmatch(_OPTION.sub("", text))
    rest = match["rest"].strip() if match else ""
    return (match[1] or match[2] or match[3], rest) if match and rest and not _ANOTHER.fullmatch(rest) else None


def same_choice(gold: str, answer: str, compare: Comparison) -> bool | None:
    """By their letters; a letter with its value may stand for either."""
    if ("," in gold) != ("," in answer) and (several := option_letters(gold)) and several == option_letters(answer):
        return True
    mine, theirs = option_letter(gold), option_letter(answer)
    if mine and theirs and (mine[1] or theirs[1] or (mine[0] in "ABCDE" and theirs[0].upper() in "ABCDE")):
        return mine[0].upper() == theirs[0].upper()
    picked = option_with_value(answer)
    if picked and mine and (mine[0].isupper() or mine[1]):
        return picked[0] == mine[0].upper()
    if picked and not mine and not option_with_value(gold):
        return compare.same(gold, picked[1])
    if mine and mine[1] and parse_number(answer):
        return False
    stated = option_with_value(gold)
    if stated and theirs:
        return stated[0] == theirs[0].upper()
    if stated and picked:
        return (stated[0] == picked[0] and compare.same(stated[1], picked[1])) or None
    return (stated is not None and compare.same(stated[1], answer)) or None


_HALF = r"([ap])\.? ?m\.?"
_TIME = re.compile(rf"(\d{{1,2}}):(\d{{2}})(?::(\d{{2}}))? ?(?:{_HALF})?|(\d{{1,2}}) ?{_HALF}", re.IGNORECASE)
_ZONE = re.compile(r" ?(?:in the )?(morning|afternoon|evening|noon|midnight)$", re.IGNORECASE)
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" if name != "may" else name for name in _MONTHS)
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_DATE = re.compile(rf"(?:({_MONTH})\.? {_DAY}|(?:the )?{_DAY}(?: of)? ({_MONTH})\.?)(?:,? ?(\d{{4}}))?", re.IGNORECASE)
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_FIGURES = re.compile(r"\d{1,18}(?:\.\d{1,18})?")
_DASH = r" ?(?:--?|(?:\\text\{)?\b(?:to|through)\b\}?) ?"
_JOINED = re.compile(rf"{_FIGURES.pattern}(?:{_DASH}{_FIGURES.pattern})+|\d{{1,18}}(?:/\d{{1,18}}){{2,}}")


def clock_time(text: str) -> tuple[int, int, int, str] | None:
    """(hour, minute, second, "a", "p" or "") of a clock time."""
    plain = re.sub(r" +", " ", TEXT.sub(r" \1", text)).strip()
    if plain.lower() in ("noon", "midnight"):
        return (12, 0, 0, "p" if plain.lower() == "noon" else "a")
    half = ""
    if zone := _ZONE.search(plain):
        half, plain = ("a" if zone[1].lower() in ("morning", "midnight") else "p"), plain[: zone.start()]
    match = _TIME.fullmatch(f"{plain}:00" if zone and plain.isdigit() else plain)
    if not match:
        return None
    hour, minute = int(match[1] or match[5]), int(match[2] or 0)
    if hour > 24 or minute > 59:
        return None
    return hour, minute, int(match[3] or 0), (match[4] or match[6] or half).lower()


def date(text: str) -> tuple[str, int, str | None] | None:
    """(month, day, year or None) of a date: March 14, 14th of March, 4 July 1776, 1776-07-04."""
    if (iso := _ISO.fullmatch(text)) and 1 <= int(iso[2]) <= 12:
        return _MONTHS[int(iso[2]) - 1][:3], int(iso[3]), iso[1]
    if not any(character.isdigit() for character in text) or not any(month[:3] in text.lower() for month in _MONTHS):
        return None
    match = _DATE.fullmatch(re.sub(r" +", " ", TEXT.sub(r" \1 ", text)).replace(" ,", ",").strip())
    return ((match[1] or match[4])[:3].lower(), int(match[2] or match[3]), match[5]) if match else None


def same_date(gold: str, answer: str, compare: Comparison) -> bool | None:
    """A gold without a year leaves it open."""
    day, other_day = date(gold), date(answer)
    return day[:2] == other_day[:2] and day[2] in (None, other_day[2]) if day and other_day else None


def same_joined(gold: str, answer: str, compare: Comparison) -> bool | None:
    """Ranges, telephone numbers and dates in figures. A gold of bare numbers with a dash between is one of them
    if it goes up (10-12) or has several (555-123-4567); an answer only as 2024-01-05, any other is a subtraction."""
    read = [_FIGURES.findall(text) if _JOINED.fullmatch(text) else [] for text in (gold, answer)]
    parts, other_parts = ([*map(Fraction, figures)] for figures in read)
    if len(parts) > 2 or (parts and parts[0] < parts[1]):
        return parts == other_parts or compare.differ("range")
    return compare.differ("date") if _ISO.fullmatch(answer) else None


def same_clock(gold: str, answer: str, compare: Comparison) -> bool | None:
    """Two times of day; one of them is no number and no ratio."""
    clock, other_clock = clock_time(gold), clock_time(answer)
    if clock and other_clock:  # a missing a.m./p.m. matches either, 15:30 is 3:30 p.m.
        hours = [moment[0] for moment in (clock, other_clock)]
        if (clock[3] and other_clock[3]) or max(hours) > 12:
            hours = [hour % 24 for hour in hours]
            for index, half in enumerate((clock[3], other_clock[3])):
                if half and hours[index] <= 12:
                    hours[index] = hours[index] % 12 + (12 if half == "p" else 0)
        return hours[0] == hours[1] and clock[1:3] == other_clock[1:3]
    if any(
        moment and ":" in text and (moment[3] or ":0" in text)
        for moment, text in ((clock, gold), (other_clock, answer))
    ):
        return compare.differ("clock time")
    return None


_BASE_WORDS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12,
    "sixteen": 16,
}  # fmt: skip
_BASE_NAME = "-?\\d+|" + "|".join(_BASE_WORDS)
_BASE = re.compile(
    r"\(?((?=[0-9A-Za-z]*\d)[0-9A-Za-z]+|[A-F]+|[a-f]{2,})\)? ?"
    rf"(?:_ ?\{{? ?\(?({_BASE_NAME})\)? ?\}}?|\(? ?(?:in )?base[ -]?({_BASE_NAME}) ?\)?)"
)


def number_in_base(text: str) -> tuple[str, int] | None:
    """(digits, base) of a number with its base written."""
    match = _BASE.fullmatch(TEXT.sub(r"\1", text)) if "_" in text or "base" in text else None
    if not match:
        return None
    name, digits = match[2] or match[3], match[1].upper()
    base = _BASE_WORDS.get(name) or int(name)
    if not 2 <= abs(base) <= 36 or any(int(digit, 36) >= abs(base) for digit in digits):
        return None
    return digits.lstrip("0") or "0", base


def same_in_base(gold: str, answer: str, compare: Comparison) -> bool | None:
    """Bases must agree where both are written; an answer may leave the gold's base out, but not add one."""
    left, right = number_in_base(gold), number_in_base(answer)
    if left and right:
        return left == right or compare.differ("base")
    if left:
        plain = re.sub(r"[ ,]|\\text\{([^{}]*)\}", r"\1", answer).upper()
        return (plain.lstrip("0") or "0") == left[0] or compare.differ("base")
    number = parse_number(gold) if right else None
    if not right or number is None:
        return None
    return (right[1] == 10 and number.value == int(right[0])) or compare.differ("base")


_TO = re.compile(r"(\d+) ?(?:\\text\{to\}|to) ?(\d+)")
_ARITHMETIC = re.compile(r"(?:[\d\s.+*/^(){}-]|\\(?:frac|cdot|times|div)(?![a-zA-Z]))+")
"""What a parser computes as it computes a chain of divisions: 1/2/3 would be 5:30."""
_COLON = re.compile(":")


def ratio_terms(text: str) -> list[str] | None:
    """The terms of a ratio a : b : c."""
    if match := _TO.fullmatch(text):
        return [match[1], match[2]]
    if ":" not in text or DOTS in text or "=" in text or "," in text:
        return None
    terms, colons = cut(text, _COLON)
    return terms if colons and all(terms) else None


def same_ratio(gold: str, answer: str, compare: Comparison) -> bool | None:
    terms, other_terms = ratio_terms(gold), ratio_terms(answer)
    if terms and other_terms:
        same = len(terms) == len(other_terms) and all(map(compare.value, terms, other_terms))
        return same or compare.differ("ratio")
    if not terms and not other_terms:
        return None
    other = answer if terms else gold  # 2:3 beside 2/3; not 4:6 beside 2/3
    number, parts = parse_number(other), [parse_number(term) for term in terms or other_terms or []]
    if len(parts) > 2:  # no number is a ratio of three, though a parser may read it as a chain of divisions
        return compare.differ("ratio")
    if number is None or not all(parts):
        return compare.differ("ratio") if all(parts) and _ARITHMETIC.fullmatch(other) else None
    pair = tuple(part.value for part in parts if part)
    return pair == (number.value.numerator, number.value.denominator) or compare.differ("ratio")
