r"""The one scanner of brackets. What counts as a bracket is a pattern with the groups `open` and `close`; what the
pattern matches outside of them (an escaped character) is passed over."""

import re
from collections.abc import Iterator

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
    kept, lowest, depth, position = "", 0, 0, 0
    for match, depth in brackets(text, UNESCAPED_BRACES):
        if depth < lowest:
            kept, lowest, position = kept + text[position : match.start()], depth, match.end()
    return kept + text[position:] + "}" * (depth - lowest)
