"""From the lines of a formula to its graph: names, stages, and what each part is one of."""

import ast
import hashlib
import math
from collections.abc import Mapping
from keyword import iskeyword
from typing import Any

from tepo.common.errors import UserError, unknown_name
from tepo.formula.graph import Function, Node, Per
from tepo.formula.language import FOLDED, FUNCTIONS, GIVEN, HANDED, MOST, OPERATORS, WORDS
from tepo.formula.syntax import BINARY, COMPARED, LARGEST_EXPONENT, UNARY, Place, parse

COMMUTATIVE = ("+", "*", "&", "|", "==", "!=", "min", "max")
LANGUAGE = 1  # raised when the meaning of a text changes
_ACCEPTED = {
    "token": ("token",),
    "each": ("token", "response"),
    "response": ("response",),
    "named": ("named",),
    "several": ("response", "token", "named"),
    "unnamed": ("response", "token", ""),
}
_FIXES = {
    ("token", "response"): "tokens(…) puts a response's value on each of its tokens",
    ("response", "token"): "mean_i(…) or sum_i(…) of it",
    ("unnamed", "named"): "sum_k(…) makes one value per response of them",
}


class Builder:
    """The graph of a formula. where: the place of each line and constant, for messages; own: functions of a user's
    own."""

    def __init__(
        self,
        lines: Mapping[str, str],
        constants: Mapping[str, float],
        where: Mapping[str, str],
        own: Mapping[str, Function],
    ) -> None:
        self.lines = {name: " ".join(str(text).split()) for name, text in lines.items()}
        self.constants, self.where, self.functions = constants, where, {**FUNCTIONS, **own}
        self.nodes: dict[str, Node] = {}  # by digest: no two mean the same
        self.known: dict[str, Node] = {}  # of lines that are read
        self.read: set[str] = set()
        for name in lines:
            place = Place(name, self.lines[name], 0, 0, where.get(name, ""))
            if not _is_name(name):
                raise place.error(f"{name!r} cannot be a name", _NAME)
            if name in GIVEN or name in self.functions:
                raise place.error(f"{name!r} has a meaning already and cannot be defined", "another name")
            if name in constants:
                raise place.error(f"{name!r} is a constant too", "another name")
        for name in constants:
            if not _is_name(name):
                raise UserError(f"{name!r} cannot be the name of a constant", where=where.get(name, ""), fix=_NAME)
            if name in GIVEN or name in self.functions:
                what = f"the constant {name!r} has a meaning already and cannot be defined"
                raise UserError(what, where=where.get(name, ""), fix="another name")

    def line(self, name: str) -> Node:
        """The node of a line. Raises UserError, with a caret, for what is wrong in it or in a line that it reads."""
        waiting = [name]  # each reads the one behind it: a chain of lines may be longer than Python's stack is deep
        while waiting:
            line = waiting[-1]
            if line not in self.known:
                place = Place(line, self.lines[line], 0, len(self.lines[line]), self.where.get(line, ""))
                tree = parse(place)
                names = sorted((part for part in ast.walk(tree) if isinstance(part, ast.Name)), key=_column)
                unknown = next((part.id for part in names if part.id in self.lines.keys() - self.known.keys()), "")
                if unknown in waiting:
                    circle = " reads ".join([*waiting[waiting.index(unknown) :], unknown])
                    raise UserError(f"a line depends on itself: {circle}", where=self.where.get(unknown, ""))
                if unknown:
                    waiting.append(unknown)
                    continue
                self.known[line] = self._node(tree, place)
            waiting.pop()
        return self.known[name]

    def expression(self, name: str, text: str) -> Node:
        """The node of a text, which need not be a line of the formula."""
        place = Place(name, text, 0, len(text), self.where.get(name, ""))
        return self._node(parse(place), place)

    def handing(self, root: Node, handed: Node) -> dict[int, Node]:
        """The same graph where one node is given: the value that the rollout hands over. By the number that it had."""
        per = handed.per if handed.per == "response" else "token"
        leaf = self._add("given", (), handed.place, value=HANDED, per=per, loss=True)
        if handed.condition:  # it is handed over as 0 or 1
            leaf = self.operator("!=", leaf, self.number(0, handed.place))
        new_nodes = {handed.number: leaf}
        for node in root.below():
            args = tuple(new_nodes[part.number] for part in node.args)
            if node.number in new_nodes:
                continue
            make = self._call if node.function else self._operator
            same = args == node.args
            new_nodes[node.number] = (
                node if same else make(node.op, args, [part.place for part in node.args], node.place)
            )
        return new_nodes

    def operator(self, op: str, *args: Node) -> Node:
        """The node of an operator between nodes."""
        return self._operator(op, args, [part.place for part in args], args[0].place)

    def _add(self, op: str, args: tuple[Node, ...], place: Place, value: float | str | None = None, **is_: Any) -> Node:
        """The node of this meaning, made where there is none yet. is_: fields of a node."""
        function, parts = is_.get("function"), [part.digest for part in args]
        meaning = [str(LANGUAGE), op, repr(value), *(sorted(parts) if op in COMMUTATIVE else parts)]
        meaning += [function.text] if function and function.text else []
        digest = hashlib.sha256("\0".join(meaning).encode()).hexdigest()
        if digest not in self.nodes:
            self.nodes[digest] = Node(len(self.nodes), op, args, place, digest, value, **is_)
        return self.nodes[digest]

    def number(self, value: float, place: Place) -> Node:
        """The node of a number."""
        return self._add("number", (), place, float(value))

    def _node(self, tree: ast.expr, line: Place) -> Node:
        place = line.at(tree)
        match tree:
            case ast.Constant(value=value):
                return self.number(float(value), place)  # type: ignore[arg-type]
            case ast.Name(id=name):
                return self._named(name, place)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._node(operand, line)
            case ast.UnaryOp(op=op, operand=operand):
                return self._operator(UNARY[type(op)], *self._parts([operand], line), place)
            case ast.BinOp(op=op, left=left, right=right):
                return self._operator(BINARY[type(op)], *self._parts([left, right], line), place)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._operator(COMPARED[type(op)], *self._parts([left, right], line), place)
            case ast.Call(func=ast.Name(id=name), args=args):
                if name in {*GIVEN, *self.lines, *self.constants}:
                    raise place.error(f"{name} is no function", "put a * between what is multiplied")
                if name not in self.functions:
                    raise line.at(tree.func).error(*self._no_function(name))
                return self._call(name, *self._parts(args, line), place)
        raise AssertionError(tree)

    def _no_function(self, name: str) -> tuple[str, str]:
        """What is wrong with a function that there is not, and what to do: another, or one in Python."""
        error = unknown_name("function", name, self.functions)
        above = '@function(takes="any", gives="same")  # from tepo.objectives'
        own = f"or your own, objective.functions=FILE.py:\n    {above}\n    def {name}(layout, x): …"
        return error.what, f"{error.fix} {own}"

    def _parts(self, trees: list[ast.expr], line: Place) -> tuple[tuple[Node, ...], list[Place]]:
        """Nodes, and where they are written here: one that means the same may stand elsewhere too."""
        return tuple(self._node(part, line) for part in trees), [line.at(part) for part in trees]

    def _named(self, name: str, place: Place) -> Node:
        if name in self.constants or name in self.lines:
            self.read.add(name)
            return self.number(self.constants[name], place) if name in self.constants else self.line(name)
        if name in self.functions:
            raise place.error(f"{name} is a function", f"{name}(…)")
        if name not in GIVEN:
            raise place.unknown("name", name, [*GIVEN, *self.lines, *self.constants])
        entry = GIVEN[name]
        stages = {"rollout": entry.stage == "rollout", "loss": entry.stage == "loss"}
        return self._add("given", (), place, name, per=entry.per, gradient=entry.gradient, **stages)

    def _per(self, args: tuple[Node, ...], place: Place) -> Per:
        pers = {part.per for part in args} - {""}
        if pers == {"named", "response"}:
            return "named"
        if "named" in pers and len(pers) > 1:
            raise place.error("named rewards and tokens do not meet", "sum_k(…) makes one value per response of them")
        return "token" if "token" in pers else pers.pop() if pers else ""  # type: ignore[return-value]

    def _operator(self, op: str, args: tuple[Node, ...], places: list[Place], place: Place) -> Node:
        compared, logical = op in COMPARED.values(), op in ("&", "|", "~")
        for part, here in zip(args, places, strict=True):
            if logical and not part.condition:
                raise here.error("no condition", f"{op} takes conditions, such as (A > 0)")
        if op == "/" and (args[1].value == 0 or (args[1].op == "-" and args[1].args[0] is args[1].args[1])):
            raise places[1].error("a division by 0")
        if op == "**":
            if args[1].op != "number":
                raise places[1].error("an exponent is a number", "exp(b*log(a))")
            if abs(float(args[1].value or 0)) > LARGEST_EXPONENT:
                raise places[1].error(f"an exponent beyond {LARGEST_EXPONENT}")
        if all(part.op == "number" for part in args):
            if compared:
                raise place.error("both sides are constants")
            return self._folded(op, args, place)
        return self._computed(op, args, place, self._per(args, place), compared or logical)

    def _folded(self, op: str, args: tuple[Node, ...], place: Place) -> Node:
        """The number that an operator or a function makes of numbers."""
        try:
            number = {**OPERATORS, **FOLDED}[op](*(float(part.value or 0) for part in args))
        except (ValueError, OverflowError, ZeroDivisionError):
            number = math.nan
        if not isinstance(number, int | float) or not math.isfinite(number):
            raise place.error("no number")
        return self.number(float(number), place)

    def _call(self, name: str, args: tuple[Node, ...], places: list[Place], place: Place) -> Node:
        function = self.functions[name]
        self.read |= {function.file} - {""}
        if not function.least <= len(args) <= function.most:
            arity = str(function.least) if function.least == function.most else f"{function.least} to {function.most}"
            raise place.error(f"{name} takes {arity} arguments, not {len(args)}", function.doc)
        for part, here, word in zip(args, places, [*function.takes, *function.takes[-1:] * len(args)], strict=False):
            self._check(name, part, here, word.rstrip("?*"))
            if function.stage == "rollout" and (ofloss := next((node for node in part.below() if node.loss), None)):
                what = f"{name} is of the rollout, and {ofloss.value or ofloss.op} is of the loss"
                raise here.error(what, "a rollout has R, G, V, T, t, H_old, L, finished, R_k and weight_k")
        if name == "comb" and not (0 <= float(args[1].value or 0) <= MOST and float(args[1].value or 0).is_integer()):
            raise places[1].error(f"k of comb is a whole number up to {MOST}")
        if name == "clip" and args[1].op == args[2].op == "number":
            low, high = (float(part.value or 0) for part in args[1:])
            if low > high:
                raise places[1].error(f"clip from {low:g} to {high:g}", "the smaller bound first")
        if name in FOLDED and all(part.op == "number" for part in args):
            return self._folded(name, args, place)
        condition = function.gives == "condition"
        domain = "token" if condition else function.gives
        per = self._per(args, place) if domain == "same" else domain
        return self._computed(name, args, place, per, condition)

    def _check(self, name: str, part: Node, place: Place, word: str) -> None:
        """Raises UserError where an argument is not what a function takes."""
        has = WORDS[part.per]
        if word == "condition" and not part.condition:
            raise place.error(f"{name} wants a condition here", "such as (A > 0)")
        if word in ("number", "share") and part.op != "number":
            raise place.error(f"{name} wants a constant here")
        if word == "share" and not 0 <= float(part.value or 0) <= 1:
            raise place.error(f"{name} wants a share from 0 to 1 here, not {part.value:g}", "0.2 for a fifth")
        if word in _ACCEPTED and part.per not in _ACCEPTED[word]:
            domain = WORDS[_ACCEPTED[word][0]].replace("one per", "one value per")
            fix = "R_k, weight_k" if word == "named" else _FIXES.get((word, part.per), "")
            raise place.error(f"{name} wants {domain} here, and this is {has}", fix)
        if word == "all" and part.per != "token" and part.spelled != "responses":
            fix = f"{name}(tokens(…)) or {name}(responses(…)): these are two numbers"
            raise place.error(f"{name} of {has}: a mean over what?", fix if part.per == "response" else "")

    def _computed(self, op: str, args: tuple[Node, ...], place: Place, per: str, condition: bool) -> Node:
        function = self.functions.get(op)
        stage = function.stage if function else ""
        detached = condition or stage or op in ("sg", "max_others_g")
        return self._add(
            op,
            args,
            place,
            per=per,
            condition=condition,
            rollout=stage == "rollout" or any(part.rollout for part in args),
            loss=stage == "mini-batch" or any(part.loss for part in args),
            gradient=not detached and any(part.gradient for part in args),
            function=function,
        )


_NAME = "a letter, then letters, digits and _, but no word of Python's such as lambda"


def _is_name(name: str) -> bool:
    """Tell whether a line or a constant can be called so."""
    return name.isidentifier() and name.isascii() and not iskeyword(name)


def _column(part: ast.expr) -> int:
    return part.col_offset
