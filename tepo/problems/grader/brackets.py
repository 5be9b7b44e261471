r"""The one scanner of brackets, and what is cut at the top level by it: lists, groups, unions, relations.

What counts as a bracket is a pattern with the groups `open` and `close`; what the pattern matches outside of them (an
escaped character) is passed over."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Replacement = str | Callable[[re.Match[str]], str]
Rules = list[tuple[re.Pattern[str], Replacement]]


def rules(*rows: tuple[str | re.Pattern[str], Replacement]) -> Rules:
    """A table of patterns and what stands in the place of what they match."""
    return [(re.compile(pattern), replacement) for pattern, replacement in rows]


def rewrite(text: str, table: Rules) -> str:
    """The text after all rules of a table, in their order."""
    for pattern, replacement in table:
        text = pattern.sub(replacement, text)
    return text


_ENVIRONMENT = r"\{(?:[a-z]*matrix|array|cases)\}"
BRACES = re.compile(r"(?P<open>\{)|(?P<close>\})")
UNESCAPED_BRACES = re.compile(r"\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)
r"""In \{ and \} the brace is a character to print."""
PARENTHESES = re.compile(r"(?P<open>\()|(?P<close>\))")
CHARACTERS = re.compile(r"(?P<open>[{(\[])|(?P<close>[})\]])")
FENCES = re.compile(
    rf"(?P<open>\\begin{_ENVIRONMENT}|\\(?:langle|lfloor|lceil)(?![a-zA-Z])|\\\{{|[({{\[])"
    rf"|(?P<close>\\end{_ENVIRONMENT}|\\(?:rangle|rfloor|rceil)(?![a-zA-Z])|\\\}}|[)}}\]])|\\.",
    re.DOTALL,
)
"""All brackets of canonical text. They need not pair by kind: intervals close with another one than they open."""


def brackets(text: str, kind: re.Pattern[str], start: int = 0) -> Iterator[tuple[re.Match[str], int]]:
    """Each bracket from `start` on, with the depth behind it (negative where more were closed than opened)."""
    depth = 0
    for match in kind.finditer(text, start):
        if match.lastgroup == "open":
            depth += 1
            yield match, depth
        elif match.lastgroup:
            depth -= 1
            yield match, depth


def closing(text: str, start: int, kind: re.Pattern[str]) -> int | None:
    """Index of the bracket that closes the one at `start`; None if there is none."""
    for match, depth in brackets(text, kind, start):
        if depth == 0:
            return match.start()
    return None


def deepest(text: str) -> int:
    """Deepest nesting of brackets and braces, whatever stands before them."""
    return max((depth for _, depth in brackets(text, CHARACTERS)), default=0)


def depths(text: str) -> list[int]:
    """Bracket depth of every character of canonical text; a bracket has the depth behind it."""
    result, before, position = [], 0, 0
    for match, depth in brackets(text, FENCES):
        result += [before] * (match.start() - position) + [depth] * (match.end() - match.start())
        before, position = depth, match.end()
    return result + [before] * (len(text) - position)


def encloses(text: str, last: int = 1) -> bool:
    """Is everything before the `last` characters inside the bracket at the start?"""
    return min(depths(text)[:-last]) >= 1


def cut(text: str, pattern: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Pieces and separators of canonical text cut at the matches outside of brackets."""
    if not pattern.search(text):
        return [text.strip()], []
    level = depths(text)
    pieces, separators, start = [], [], 0
    for match in pattern.finditer(text):
        if level[match.start()] == 0:
            pieces.append(text[start : match.start()].strip())
            separators.append(match.group())
            start = match.end()
    return [*pieces, text[start:].strip()], separators


def balanced(text: str) -> str:
    """Braces that a malformed text leaves open are closed at its end; those that close nothing are dropped."""
    prefix, lowest, depth, position = "", 0, 0, 0
    for match, depth in brackets(text, UNESCAPED_BRACES):
        if depth < lowest:
            prefix, lowest, position = prefix + text[position : match.start()], depth, match.end()
    return prefix + text[position:] + "}" * (depth - lowest)


_AND = re.compile(
    r"\\text\{,? ?(?:and|or)\}|\\(?:wedge|vee|lor|land)(?![a-zA-Z])|(?<![a-zA-Z\\{])(?:and|or|OR|AND)(?![a-zA-Z}])"
)
_COMMA = re.compile(r"[,;]")
_CUP = re.compile(r"\\cup(?![a-zA-Z])|\\text\{U\}")
_RELATION = re.compile(
    r"(?<![\^_])\\(?:leq|geq|neq|in|notin|equiv|approx|subseteq|subset|mid|nmid|parallel|perp|cong|sim)(?![a-zA-Z])|\\implies(?![a-zA-Z])|=|<|>"
)
_RANGE = re.compile(
    r"(?P<value>.+?) ?,? ?\(?\\text\{,? ?(?:for|where|with)(?: all| any| every| each)?\}"
    r" ?(?P<letter>[i-q]) ?(?:[<>]|\\(?:leq|geq|in)(?![a-zA-Z])).*"
)
BETWEEN_WORDS = re.compile(r"(?<=[^_^\s])\s*\\text\{ ?[a-zA-Z][a-zA-Z ,]{2,}\}(?=\s*[^\s(^_])")  # 3 \text{boys and} 5
IMPLIES = re.compile(r"\\implies(?![a-zA-Z])")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
TEXT = re.compile(r"\\text\{([^{}]*)\}")
THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Bracketed:
    """Items between brackets; `left` and `right` are `(`, `[`, `{` … as written (`\\{` as `{`, `\\langle` as `(`)."""

    left: str
    items: tuple[str, ...]
    right: str


_BETWEEN_DIGITS = re.compile(r"(?<!\d) | (?!\d)")


def squeezed(text: str) -> str:
    """Without spaces, except between digits: 4 2 is not 42."""
    return _BETWEEN_DIGITS.sub("", text) if " " in text else text


def items(text: str) -> list[str]:
    """Elements of a list written with commas, semicolons, "and" or "or"; a single thousands-separated number is one."""
    pieces = [piece for part in cut(_joined(text), _AND)[0] for piece in cut(part, _COMMA)[0] if piece]
    return pieces or [text]


def _joined(text: str, *, alone: bool = True) -> str:
    """Thousands separators taken out where commas can be nothing else: no other commas (if `alone` may decide),
    or only such with a space behind."""
    if "," not in text:
        return text
    level = depths(text)
    numbers = [match for match in _THOUSANDS.finditer(text) if level[match.start()] == 0]
    within = {index for match in numbers for index in range(*match.span()) if text[index] == ","}
    commas = [index for index, character in enumerate(text) if character == "," and level[index] == 0]
    others = [index for index in commas if index not in within]
    if any(text[index + 1 : index + 2] != " " for index in others) or (not others and not alone):
        return text
    return "".join(character for index, character in enumerate(text) if index not in within)


def comma_items(text: str) -> list[str]:
    """Elements at the top-level commas, with no eye for thousands."""
    return [piece for piece in cut(text, _COMMA)[0] if piece]


def union(text: str) -> list[str]:
    return [piece for piece in cut(text, _CUP)[0] if piece] or [text]


def relation(text: str) -> tuple[list[str], list[str]]:
    r"""Sides and signs of a relation chain: `1 < x \leq 2` -> ([1, x, 2], [<, \leq])."""
    return cut(text, _RELATION)


def unconditional(text: str) -> str:
    r"""Without the range of an integer in the value: 2^k-1 \text{for} k \geq 1. Of x > 0 it would change the value."""
    match = None if "\\begin" in text else _RANGE.match(text)
    used = match and re.search(rf"(?<![a-zA-Z\\]){match['letter']}(?![a-zA-Z])", match["value"])
    return match["value"] if match and used else text


def group(text: str) -> Bracketed | None:
    """The bracketed group a text is, if its first bracket closes at its end."""
    left = next((fence for fence in ("(", "[", "\\{", "\\langle") if text.startswith(fence)), "")
    right = next((fence for fence in ("\\}", "\\rangle", ")", "]") if text.endswith(fence)), "")
    if not left or not right or not encloses(text, len(right)):
        return None
    inside = text[len(left) : len(text) - len(right)].strip()
    names = {"\\{": "{", "\\}": "}", "\\langle": "(", "\\rangle": ")"}
    items = tuple(comma_items(_joined(inside, alone=False))) if inside else ()
    return Bracketed(names.get(left, left), items, names.get(right, right))


def strip_parentheses(text: str) -> str:
    """Without brackets or braces around all of it: (x+1) -> x+1, {5} -> 5. Tuples keep theirs."""
    while len(text) > 2 and text[0] + text[-1] in ("()", "{}"):
        if not encloses(text) or (text[0] == "(" and len(comma_items(text[1:-1])) > 1):
            return text
        text = text[1:-1].strip()
    return text
