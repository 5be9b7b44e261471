r"""Two answers of which at least one is a relation: equations, inequalities, memberships, congruences, negations."""

import re
from fractions import Fraction

from tepo.problems.grader import groups
from tepo.problems.grader.brackets import relation
from tepo.problems.grader.groups import Comparison, is_symbol, same_sets, solution_set
from tepo.problems.grader.notations import VERDICTS, words
from tepo.problems.grader.numbers import approximate, parse_number

_GROUPED = re.compile(r"[_^]\s*(?:\{[^{}]*\}|-?\w)|\([^()]*\)|\[[^\[\]]*\]|\\text\{[^{}]*\}")
_INDEX = r"(?:_(?:\{[^{}]*\}|\w))?'*"
_WITHIN = re.compile(
    r"(?:m ?(?=\\)|\\(?:angle|measuredangle|triangle|(?:arc)?(?:sin|cos|tan|cot|sec|csc)|ln|log|det|deg|arg|max|min"
    r"|operatorname\{[^{}]*\})(?![a-zA-Z]))"
    r"|\|([^|]*)\|$|\[([^\[\]]*)\]$|\\(?:overline|vec|bar|hat|dot|ddot|widehat|mathbf)\{([^{}]*)\}$"
)
_ONE = re.compile(
    rf"\((?:{groups.SYMBOL.pattern})(?:, ?(?:{groups.SYMBOL.pattern}))+\)"  # (x, y)
    rf"|(?:[A-Z]{_INDEX} ?)+|[a-zA-Z]{{4,}}|\\text\{{[^{{}}]*\}}.*"  # AB, area, \text{the area of} ABC
    rf"|\\?[a-zA-Z]+{_INDEX} ?(?:\([^()]*\)|\[[^\[\]]*\])|[a-zA-Z]\^\{{\\prime\}}(?:\([^()]*\))?"  # P(X), f'(x)
    r"|\\frac\{ ?(?:d|\\partial)[^{}+-]*(?:\{\d\}[^{}+-]*)?\}\{ ?(?:d|\\partial)[^{}+-]*(?:\{\d\})?\}"  # dy/dx
)
_DIGIT = re.compile(r"\d")


def is_one_unknown(text: str) -> bool:
    r"""Does this name one unknown (or a tuple of unknowns), so that its value alone answers: x, f(x), AB, \angle ABC,
    |AB|, \tan A, dy/dx, \text{the area of} ABC, (x, y)? Neither x+y nor y^2 does: y^2=4x is a curve."""
    text = text.strip()
    while match := _WITHIN.match(text):
        text = (match[1] or match[2] or match[3] or text[match.end() :]).strip()
    return groups.is_variable(text) or _ONE.fullmatch(text) is not None


def is_name(text: str) -> bool:
    r"""May this stand left of "=" as the name of what is asked: x, f(x), \angle ABC, x^2+y^2, \frac{AB}{CD},
    but not 2x."""
    bare = _GROUPED.sub("", text).strip()
    return bool(bare or text) and not _DIGIT.search(bare) and any(character.isalpha() for character in text)


MODULUS = re.compile(r"\(? ?\\mod ?\{? ?([^()}]+?) ?\}? ?\)?$")
_COMPUTED = re.compile(
    r"(?=.*(?:\d|\\pi))(?:[\d\s.,+*/^(){}\[\]!|%-]|\\log ?_ ?(?:\d|\{\d+\})"
    r"|\\(?:frac|sqrt|binom|cdot|times|div|pi|log|ln|sin|cos|tan|cot|sec|csc|gcd|lcm|max|min|lfloor|rfloor|lceil|rceil)(?![a-zA-Z]))+"
)
_LEIBNIZ = re.compile(r"\\frac\{d([a-zA-Z])\}\{d[a-zA-Z]\}")
_CALL = re.compile(r"([a-zA-Z])\(([a-zA-Z])\)")


def same_relation(gold: str, answer: str, compare: Comparison) -> bool:
    """Do two texts, at least one of them with a relation sign, say the same?"""
    (sides, left), (others, right) = relation(gold), relation(answer)
    mine, theirs = solution_set([gold]), solution_set([answer])
    if "\\notin" in left + right or "\\neq" in left + right:
        if ("\\neq" in left) != ("\\neq" in right) and {"\\neq", "\\in"}.issuperset(left + right):
            return bool(mine and theirs and same_sets(mine, theirs, compare)) or compare.differ("negated relation")
        if left != right:
            return compare.differ("negated relation")
    if "\\equiv" in left + right:
        return congruence(gold, answer, compare)
    if set(left) <= {"="} and set(right) <= {"="}:
        return _equations(gold, answer, compare)
    if mine and theirs:
        return same_sets(mine, theirs, compare)
    if left == ["\\in"] and not right:
        return compare.same(sides[1], answer)
    if right == ["\\in"] and not left:
        return compare.same(gold, others[1])
    readings = [(others, right)]  # also from the right: a<b is b>a
    if all(sign in groups.FLIPPED for sign in right):
        readings.append((others[::-1], [groups.FLIPPED[sign] for sign in reversed(right)]))
    for ends, signs in readings:
        pairs = zip(sides, ends, strict=False)
        if left == signs and all(compare.same(a, b) if a and b else a == b for a, b in pairs):
            return True
    ordered = all(sign in groups.ORDER for sign in left + right)
    return compare.expressions(gold, answer) if ordered else compare.differ("relation")


def exact_side(text: str) -> str:
    r"""22/7 \approx 3.14 is 22/7; x \approx 3.14 is x = 3.14."""
    sides, signs = relation(text)
    if "\\approx" not in signs:
        return text
    head = text[: text.index("\\approx")].strip()
    if not head:
        return sides[-1]
    return f"{head} = {sides[-1]}" if is_name(head) and head not in ("\\pi", "e") and "=" not in head else head


def congruence(gold: str, answer: str, compare: Comparison) -> bool:
    """N = 672 mod 1000: the residue, and the modulus where both give it. 7 mod 5 is 2 mod 5."""
    residues_of = []
    for text in (gold, answer):
        match = MODULUS.search(text)
        body = text[: match.start()].strip() if match else text
        residues_of.append((relation(body)[0], match[1] if match else None))
    (golds, mine), (sides, theirs) = residues_of
    left, right = golds[-1], sides[-1]
    if mine and theirs and not compare.same(mine, theirs):
        return compare.differ("modulus")
    modulus, residues = parse_number(mine or theirs or ""), (parse_number(left), parse_number(right))
    values = [number.value for side in sides if (number := parse_number(side))]
    if modulus and modulus.value and any((value - values[-1]) % modulus.value for value in values):
        return compare.differ("contradiction")
    if mine and theirs and modulus and modulus.value and residues[0] and residues[1]:
        return (residues[0].value - residues[1].value) % modulus.value == 0
    return compare.same(left, right)


def _equations(gold: str, answer: str, compare: Comparison) -> bool:
    """`x=5` beside 5, and equations beside equations. A gold that is a true equation (y^2=4x, x+y=3) is no value; of an
    answer that ends in the value asked for (x+y=3 beside 3) the value counts."""
    left, right = _name_first(relation(gold)[0]), _name_first(relation(answer)[0])
    if not all(_agree(side, right[-1], compare) for side in right[:-1]):
        return compare.differ("contradiction")
    if len(right) == 1:
        return (is_one_unknown(left[0]) or (len(left) > 2 and is_name(left[0]))) and compare.same(left[-1], answer)
    if len(left) == 1:
        return (is_name(right[0]) or _is_numeric(right)) and compare.same(gold, right[-1])
    if not is_name(left[0]) or not is_name(right[0]):
        return compare.expressions(gold, answer)
    if left[0].replace(" ", "") == right[0].replace(" ", ""):
        if compare.same(left[-1], right[-1]):
            return True
        if "(" in left[0] or (is_symbol(left[0]) and left[0] not in left[-1] + right[-1]):
            return False  # both are solved for the same name
    renamed = _renamed(left[0], right[0], right[-1])
    if renamed is not None:
        return compare.same(left[-1], renamed)
    if _LEIBNIZ.fullmatch(left[0]) and _LEIBNIZ.fullmatch(right[0]):
        return compare.differ("variable")
    if _is_numeric([left[-1], right[-1]]) and is_symbol(left[0]) and is_symbol(right[0]):
        return compare.differ("variable") if left[0] != right[0] else False
    return compare.expressions(gold, answer)


def _agree(side: str, last: str, compare: Comparison) -> bool:
    """May a side of a chain be the last one? Two values must be equal (37 = 36 is no answer), a decimal may be rounded;
    of names and of what contains some nothing is said."""
    if words(side) in VERDICTS or words(last) in VERDICTS:
        return words(side) not in VERDICTS or words(side) == words(last)
    if not all(parse_number(text) or _COMPUTED.fullmatch(text) for text in (side, last)):
        return True
    for decimal, other in ((side, last), (last, side)):
        if (number := parse_number(decimal)) and number.ulp:
            exact, rough = parse_number(other), approximate(other)
            value = exact.value if exact else None if rough is None else Fraction(rough)
            if number.rounds(value, 1) if value is not None else "%" not in other:
                return True
    return compare.same(last, side)


def _is_numeric(sides: list[str]) -> bool:
    r"""A chain of numeric expressions such as \frac{10}{2} = 5, whose last side is the answer."""
    return not re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+|(?<![a-zA-Z])i(?![a-zA-Z])", "", "|".join(sides)))


def _name_first(sides: list[str]) -> list[str]:
    """5 = x as x = 5."""
    return sides[::-1] if is_symbol(sides[-1]) and not is_name(sides[0]) else sides


def _renamed(gold: str, answer: str, value: str) -> str | None:
    """The answer's value under the gold's name: f(n)=… for f(x)=…, y=… for f(x)=…. None when the names mean other
    things."""
    gold, answer = (_LEIBNIZ.sub(r"\1'", name.replace(" ", "")) for name in (gold, answer))
    if gold == answer and "'" in gold:
        return value
    mine, theirs = _CALL.fullmatch(gold), _CALL.fullmatch(answer)
    if (mine and mine[2] == "x" and answer == "y") or (theirs and theirs[2] == "x" and gold == "y"):
        return value
    if not mine or not theirs or mine[1] != theirs[1] or mine[2] == theirs[2]:
        return None
    return re.sub(rf"(?<![a-zA-Z\\]){theirs[2]}(?![a-zA-Z])", mine[2], value)
