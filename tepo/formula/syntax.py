"""The text of a line, parsed by Python's own parser and taken as data: nothing is executed.

Allowed: numbers, names, + - * / **, one comparison at a time, & | ~, calls by position."""

import ast
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from keyword import iskeyword

from tepo.common.errors import UserError, unknown_name

LONGEST, DEEPEST, LARGEST_EXPONENT = 2000, 40, 8  # characters of a line, levels of brackets, |exponent|
BINARY: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.BitAnd: "&",
    ast.BitOr: "|",
}
UNARY: dict[type, str] = {ast.USub: "neg", ast.Invert: "~"}
COMPARED: dict[type, str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


@dataclass(frozen=True)
class Place:
    """A stretch of the text of a line, for messages."""

    line: str
    text: str
    start: int = 0
    end: int = 0
    where: str = ""  # the file, or the words on the command line

    def span(self, start: int, end: int) -> "Place":
        """Another stretch of the same line."""
        return Place(self.line, self.text, start, end, self.where)

    def at(self, node: ast.AST) -> "Place":
        """The place of a part of this line. Python counts bytes: the text is ASCII by then."""
        return self.span(node.col_offset, node.end_col_offset or 0)  # type: ignore[attr-defined]

    def error(self, what: str, fix: str = "") -> UserError:
        """A mistake here, with a caret under the word."""
        width = max(self.end - self.start, 1)
        message = f"{self.line}: {what}\n  {self.text}\n  {' ' * self.start}{'^' * width}"
        return UserError(message, where=self.where, fix=fix)

    def unknown(self, what: str, name: str, known: Iterable[str]) -> UserError:
        """A name that there is not, with the nearest one."""
        error = unknown_name(what, name, set(known))
        return self.error(error.what, error.fix)


def parse(place: Place) -> ast.expr:
    """The expression in the text of a line. Raises UserError with a caret for what is none, is too large, or looks like
    another character."""
    text = place.text
    if len(text) > LONGEST:
        raise UserError(f"{place.line}: {len(text)} characters, at most {LONGEST}", where=place.where)
    depth = 0
    for column, letter in enumerate(text):
        if letter == "#":  # a comment to Python's parser, which would drop the rest of the line
            raise place.span(column, column + 1).error("no comment here", "leave it out")
        if not letter.isascii() or (letter not in "\t" and not letter.isprintable()):
            name = unicodedata.name(letter, f"U+{ord(letter):04X}").lower()
            what = f"{letter!r} is the character {name}"
            raise place.span(column, column + 1).error(what, "letters, digits and signs of ASCII")
        depth += (letter in "([{") - (letter in ")]}")
        if depth > DEEPEST:
            raise place.span(column, column + 1).error(f"nested more than {DEEPEST} deep")
    try:
        tree = ast.parse(text.strip() and text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        start = max((getattr(error, "offset", None) or 1) - 1, 0)
        raise place.span(min(start, len(text)), 0).error("no expression", _hint(text, start)) from None
    _check(tree, place, 0)
    return tree


def summands(tree: ast.expr) -> Iterator[tuple[int, ast.expr]]:
    """Split a sum into what it adds up, with signs."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub):
        yield from summands(tree.left)
        yield (1 if isinstance(tree.op, ast.Add) else -1), tree.right
    elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        yield from ((-sign, part) for sign, part in summands(tree.operand))
    else:
        yield 1, tree


def _hint(text: str, start: int) -> str:
    """Advice for what Python's parser refuses."""
    rest = text[start:]
    if not text.strip():
        return "write an expression"
    if words := [word for word in re.findall(r"[A-Za-z_]\w*", text) if iskeyword(word)]:
        return f"{words[0]!r} is a word of Python's, and no name: another one, such as {words[0]}_"
    if "=" in text.replace("==", "").replace("<=", "").replace(">=", "").replace("!=", ""):
        return "== compares; a line of its own defines a name"
    if start and (rest[:1].isalpha() or rest[:1] == "(") and (text[start - 1].isalnum() or text[start - 1] == ")"):
        return "put a * between what is multiplied"
    if text[:1].isdigit() or any(left.isdigit() and right.isalpha() for left, right in pairwise(text)):
        return "put a * between a number and a name"
    return "check brackets, commas and signs"


def _check(node: ast.expr, place: Place, depth: int) -> None:
    """Raises UserError for what Python has and this language has not."""
    here = place.at(node)
    if depth > 4 * DEEPEST:
        raise here.error("too many operations in one line", "give parts of it lines of their own")
    below: list[ast.expr] = []
    match node:
        case ast.Constant(value=value):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise here.error("neither a number nor a name")
            if not abs(value) < 1e300:
                raise here.error("a number out of range")
        case ast.Name():
            pass
        case ast.BinOp(op=op, left=left, right=right):
            if type(op) not in BINARY:
                raise here.error("an operator that there is not", "+ - * / ** & |")
            below = [left, right]
        case ast.UnaryOp(op=ast.Not()):
            raise here.error("'not' is of Python", "write ~(…)")
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() | ast.Invert(), operand=operand):
            below = [operand]
        case ast.BoolOp(op=op):
            word, sign = ("and", "&") if isinstance(op, ast.And) else ("or", "|")
            raise here.error(f"{word!r} is of Python", f"write (…) {sign} (…), with brackets around each condition")
        case ast.Compare(left=left, ops=ops, comparators=right):
            joined = [part for part in (left, *right) if isinstance(part, ast.BinOp)]
            if any(isinstance(part.op, ast.BitAnd | ast.BitOr) and not _bracketed(part, place) for part in joined):
                raise here.error("& and | bind tighter than a comparison", "(A > 0) & (w > 1): brackets around each")
            if len(ops) != 1:
                raise here.error("two comparisons in one", "(a < b) & (b < c)")
            if type(ops[0]) not in COMPARED:
                raise here.error("a comparison that there is not", "< <= > >= == !=")
            below = [left, *right]
        case ast.Attribute() | ast.Subscript() | ast.Call(func=ast.Attribute()):
            raise here.error("no dots and no square brackets here", "names, numbers and calls alone")
        case ast.Call(func=func, args=args, keywords=keywords):
            if not isinstance(func, ast.Name):
                raise here.error("no function", "a name and its arguments in brackets")
            if keywords or any(isinstance(part, ast.Starred) for part in args):
                raise here.error("arguments go by position", "without name= and without *")
            below = list(args)
        case ast.IfExp():
            raise here.error("'if' is of Python", "where(condition, then, else)")
        case _:
            raise here.error("not of this language", "numbers, names, + - * / **, comparisons, & | ~, calls")
    for part in below:
        _check(part, place, depth + 1)


def _bracketed(node: ast.expr, place: Place) -> bool:
    before = place.text[: node.col_offset].rstrip()
    return before.endswith("(") and place.text[node.end_col_offset or 0 :].lstrip().startswith(")")
