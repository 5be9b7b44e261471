"""A method as text and as LaTeX: fractions, sums and means with their indices, brackets where precedence wants them."""

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tepo.formula.graph import Function, Node
from tepo.formula.language import AVERAGES, FUNCTIONS, GIVEN, GROUPS
from tepo.formula.row import Constant, Row
from tepo.formula.syntax import COMPARED, Place, parse

# How tightly a text binds. BIG is a prefix such as \sum, which takes what follows.
SUM, BIG, PRODUCT, CALL, ATOM = range(5)
_WIDEST = 80  # letters of a line, about
_GREEK = set("alpha beta gamma delta zeta eta theta kappa mu nu xi rho sigma tau phi chi psi omega".split())  # noqa: SIM905
_HEADS = {
    "A": r"\hat{A}",
    "J": r"\mathcal{J}",
    "Om": r"\Omega",
    "dp": r"\Delta\pi",
    "eps": r"\epsilon",
    "kl": r"\mathrm{KL}",
    "low": r"\varepsilon_{\mathrm{low}}",  # of a clip
    "high": r"\varepsilon_{\mathrm{high}}",
    "R_k": "R",
    "weight_k": r"\omega",
    "dH": r"\Delta H",
    "H_old": r"H^{\mathrm{old}}",
    "kl_old": r"\mathrm{KL}(\pi_\theta \Vert \pi_{\mathrm{old}})",
    "kl_initial": r"\mathrm{KL}(\pi_\theta \Vert \pi_{\mathrm{initial}})",
}
DEFINED = {  # signs that are themselves formulas
    "d_{": r"d_{i,t} &= \log\pi_\theta(y_{i,t}) - \log\pi_{\mathrm{old}}(y_{i,t})",
    r"\Delta H": r"\Delta H_{i,t} &= H_{i,t} - H^{\mathrm{old}}_{i,t}",
    r"\mathrm{k}_3": r"\mathrm{k}_3(x) &= e^{-x} - 1 + x",
}
SAID = {  # signs that take words
    "{N}": "$N$ is the number of tokens of the mini-batch",
    "N_{g}": "$N_g$ is the number of tokens of group $g$",
    "{B": "$B$ is the number of responses of the mini-batch",
    "T_{": "$T_i$ is the number of tokens of response $i$",
    r"\mathcal{G}": r"$\mathcal{G}_i$ is the group of response $i$",
    r"\operatorname{sg}": r"$\operatorname{sg}$ stops the gradient",
    r"\mathrm{batch}": "batch is the mini-batch",
}
_COMPARED = {"<": "<", "<=": r"\le", ">": ">", ">=": r"\ge", "==": "=", "!=": r"\ne"}
_CHOSEN = {
    "top_b": r"{0} \text{{ among the }} {1}\,N \text{{ largest}}",
    "first_b": r"{0} \text{{ among the first }} {1}\,N \text{{ of the largest}}",
    "draw_b": r"\text{{drawn, }} {1}\,N \text{{ of all }} {0}",
    "tail_b": r"{0} \text{{ beyond a mean of }} {2} \text{{ where }} {1}",
}
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
SUMS = {  # those of an average, in text and in LaTeX
    "tokens": ("1/N Σ_i Σ_t", r"\frac{1}{N} \sum_{i} \sum_{t}"),
    "responses": ("1/B Σ_i 1/T_i Σ_t", r"\frac{1}{B} \sum_{i} \frac{1}{T_{i}} \sum_{t}"),
    "sums": ("1/B Σ_i Σ_t", r"\frac{1}{B} \sum_{i} \sum_{t}"),
    "budget": ("1/(B L) Σ_i Σ_t", r"\frac{1}{B L} \sum_{i} \sum_{t}"),
    GROUPS: ("mean over groups of 1/N_g Σ_i Σ_t", r"\operatorname{mean}_{g} \frac{1}{N_{g}} \sum_{i \in g} \sum_{t}"),
}
Part = tuple[str, int]  # a text, and how tightly it binds


class At(NamedTuple):
    """Letters of the response and of the token that a part stands at; no token: empty."""

    i: str = "i"
    t: str = ""

    def token(self) -> "At":
        """Another token of the same response."""
        return At(self.i, {"": "t", "t": "s"}.get(self.t, "u"))

    def other(self, token: bool) -> "At":
        """Another response, and where a token is meant, a token of it."""
        return At("j" if self.i == "i" else "l", self.token().t if token else self.t)


class Writer:
    """LaTeX of the lines of a formula. nodes: what is known of each line, by name."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes, self.functions = nodes, called(nodes.values())

    def line(self, name: str, text: str, sums: str = "") -> str:
        """The equation of a line, `&` before its sign; a long sum is broken before its last term. sums: those of the
        average over i and t."""
        at = At("i", "t" if sums or self.nodes[name].per == "token" else "")
        tree = parse(Place("", text))
        left = rf"{self.symbol(name, At())}(\theta)" if sums else self.symbol(name, at)
        right, level = self._part(tree, at)
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub) and _letters(right) > _WIDEST:
            end = " ".join(self._term(tree.right, at, isinstance(tree.op, ast.Sub)))
            right = rf"{right.removesuffix(end)}\\ &\qquad {end}"
        right = rf"\bigl[ {right} \bigr]" if sums and level == SUM else right
        return f"{left} &= {sums} {right}" if sums else f"{left} &= {right}"

    def expression(self, text: str, at: At, least: int = SUM) -> str:
        """A text of the language, in brackets where it binds less tightly than `least`."""
        return self._written(parse(Place("", text)), at, least)

    def symbol(self, name: str, at: At) -> str:
        """A name with its indices."""
        if name == "t":
            return at.t
        if name.startswith("logp") and name in GIVEN:
            who = name.partition("_")[2]
            policy = rf"{{\mathrm{{{who}}}}}" if who else r"\theta"
            return rf"\log\pi_{policy}(y_{{{at.i},{at.t}}})"
        entries: Mapping[str, Any] = GIVEN if name in GIVEN else self.nodes
        per = "" if name in ("G", "J") or name not in entries else entries[name].per
        indices = {"": [], "response": [at.i], "token": [at.i, at.t], "named": [at.i, "k"]}[per]
        indices = ["k"] if name == "weight_k" else indices
        head = _HEADS.get(name)
        if head is None:
            letters, digits, rest = re.fullmatch(r"_*([A-Za-z]*)(\d*)_*(\w*)", name).groups()  # type: ignore[union-attr]
            plain = letters if len(letters) == 1 else rf"\mathrm{{{letters}}}"
            head = _HEADS.get(letters, rf"\{letters}" if letters in _GREEK else plain)
            word = rf"\mathrm{{{rest}}}".replace("_", r"\_")
            indices = [part for part in (digits, word if rest else "") if part] + indices
        return f"{head}_{{{','.join(indices)}}}" if indices else head

    # parts ------------------------------------------------------------------------------------------------------------
    def _written(self, tree: ast.expr, at: At, least: int = SUM) -> str:
        """The text of a part, in brackets where it binds less tightly than `least`."""
        text, level = self._part(tree, at)
        return text if level >= least else _round(text)

    def _part(self, tree: ast.expr, at: At) -> Part:
        match tree:
            case ast.Constant(value=value):
                text = number(float(value))  # type: ignore[arg-type]
                return text, PRODUCT if "cdot" in text else CALL if "^" in text else ATOM
            case ast.Name(id=name):
                text = self.symbol(name, at)
                return text, BIG if text.startswith(r"\log") else CALL if "^" in text else ATOM
            case ast.UnaryOp(op=ast.Invert(), operand=ast.Name(id=name)):
                return f"1 - {self.symbol(name, at)}", SUM
            case ast.Compare() | ast.UnaryOp(op=ast.Invert()) | ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
                return self._holds(tree, at), ATOM
            case ast.BinOp(op=ast.Add() | ast.Sub() as op, left=left, right=right):
                return " ".join((self._written(left, at), *self._term(right, at, isinstance(op, ast.Sub)))), SUM
            case ast.BinOp(op=ast.Pow(), left=left, right=right):
                return f"{self._written(left, at, ATOM)}^{{{self._written(right, at)}}}", CALL
            case ast.UnaryOp() | ast.BinOp():
                negative, text, level = self._product(tree, at)
                return (f"-{_round(text) if level == SUM else text}", SUM) if negative else (text, level)
            case ast.Call(func=ast.Name(id=name), args=args):
                return self._call(name, args, at)
        raise AssertionError(tree)

    def _term(self, tree: ast.expr, at: At, minus: bool) -> tuple[str, str]:
        """The sign and the text of the last part of a sum."""
        negative, text, level = self._product(tree, at, minus)
        return "-" if negative else "+", _round(text) if level == SUM and negative else text

    def _product(self, tree: ast.expr, at: At, minus: bool = False) -> tuple[bool, str, int]:
        """A product: if it is negative, its text without the sign, how tightly that binds."""
        negative, parts = self._factors(tree, at, minus)
        for n, (_, _, part) in enumerate(parts):
            if negative and isinstance(part, ast.Call) and ast.unparse(part.func) == "expm1":
                negative, parts[n] = False, (f"1 - {self._exp(part.args[0], at)}", SUM, part)  # for -(e^x - 1)
        if len(parts) == 1:
            return negative, *parts[0][:2]
        parts.sort(key=lambda part: not re.fullmatch(r"[\d.]+", part[0]))  # 4 A, not A 4
        product = ""
        for n, (text, level, _) in enumerate(parts):
            text = text if level > BIG or (level == BIG and n == len(parts) - 1) else _round(text)
            product += (r" \cdot " if text[0].isdigit() else r"\, ") * bool(n) + text
        return negative, product, BIG if parts[-1][1] == BIG else PRODUCT

    def _factors(self, tree: ast.expr, at: At, negative: bool) -> tuple[bool, list[tuple[str, int, ast.expr]]]:
        """A product: if it is negative, and its factors without signs, of which a fraction is one."""
        match tree:
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
                return self._factors(operand, at, negative != isinstance(op, ast.USub))
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                negative, before = self._factors(left, at, negative)
                negative, after = self._factors(right, at, negative)
                return negative, before + after
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                (minus_above, above, _), (minus_below, below, _) = (
                    self._product(left, at, negative),
                    self._product(right, at),
                )
                return minus_above != minus_below, [(rf"\frac{{{above}}}{{{below}}}", CALL, tree)]
        return negative, [(*self._part(tree, at), tree)]

    def _holds(self, tree: ast.expr, at: At) -> str:
        """1 where a condition holds, else 0."""
        return r"\mathbf{1}" + _round(self._condition(tree, at), "[", "]")

    def _condition(self, tree: ast.expr, at: At) -> str:
        match tree:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return f"{self._written(left, at)} {_COMPARED[COMPARED[type(op)]]} {self._written(right, at)}"
            case ast.UnaryOp(operand=operand):
                inside = self._condition(operand, at)
                return r"\neg " + (inside if isinstance(operand, ast.Name) else _round(inside))
            case ast.BinOp(op=op, left=left, right=right):
                mixed = [isinstance(side, ast.BinOp) and type(side.op) is not type(op) for side in (left, right)]
                parts = [self._condition(side, at) for side in (left, right)]
                parts = [_round(part) if other else part for part, other in zip(parts, mixed, strict=True)]
                return (r" \wedge " if isinstance(op, ast.BitAnd) else r" \vee ").join(parts)
            case ast.Call(func=ast.Name(id=name), args=args) if name in _CHOSEN:
                words = zip(args, FUNCTIONS[name].takes, strict=True)
                return _CHOSEN[name].format(*(self._taken(x, word, at) for x, word in words))
        return self._written(tree, at)

    def _taken(self, x: ast.expr, word: str, at: At) -> str:
        """An argument of a selection. word: what the function takes there."""
        if word == "condition":
            return self._condition(x, at)
        return self._written(x, at, CALL if word in ("number", "share") else SUM)

    # functions --------------------------------------------------------------------------------------------------------
    def _call(self, name: str, args: list[ast.expr], at: At) -> Part:
        x, inner = args[0], at.token()
        match name:
            case "exp":
                text = self._exp(x, at)
                return text, ATOM if text.startswith(r"\pi") else CALL
            case "expm1":
                return f"{self._exp(x, at)} - 1", SUM
            case "log" if self._part(x, at)[1] == ATOM:
                return rf"\log {self._written(x, at)}", BIG
            case "sqrt":
                return rf"\sqrt{{{self._written(x, at)}}}", ATOM
            case "abs":
                return _round(self._written(x, at), r"\lvert ", r" \rvert"), ATOM
            case "k2":
                return rf"\frac{{1}}{{2}}\, {self._written(x, at, ATOM)}^{{2}}", PRODUCT
            case "sg":
                return r"\operatorname{sg}" + _round(self._written(x, at), "[", "]"), CALL
            case "comb":
                return rf"\binom{{{self._written(x, at)}}}{{{self._written(args[1], at)}}}", CALL
            case "where":
                then, other = (self._written(arg, at) for arg in args[1:])
                rows = rf"{then} & \text{{if }} {self._condition(x, at)} \\[1ex] {other} & \text{{else}}"
                return rf"\begin{{cases}} {rows} \end{{cases}}".replace(r"\frac", r"\dfrac"), BIG
            case "tokens" | "responses":
                return self._part(x, at)
            case "mean_i" | "sum_i" | "prefix_mean_i":
                before = {"mean_i": rf"\frac{{1}}{{T_{{{at.i}}}}} ", "prefix_mean_i": rf"\frac{{1}}{{{at.t}}} "}
                under = inner.t + rf" \le {at.t}" * (name == "prefix_mean_i")
                return rf"{before.get(name, '')}\sum_{{{under}}} {self._written(x, inner, BIG)}", BIG
            case "sum_k":
                return rf"\sum_{{k}} {self._written(x, at, BIG)}", BIG
            case "max_i":
                return rf"\max_{{{inner.t}}}" + _round(self._written(x, inner)), CALL
            case "cov_b":
                parts = (f"{self._written(arg, at)} - {self._over('mean_b', arg, at)}" for arg in args)
                return "".join(map(_round, parts)), PRODUCT
            case "share_g" | "share_t":
                inner = at.other(name == "share_g" and self._per(x) == "token")
                mean = self._over("mean_g", x, at, inner, rf":\, {self._condition(args[1], inner)}")
                return rf"{self._holds(args[1], at)}\, \frac{{{self._written(x, at)}}}{{{mean}}}", PRODUCT
            case "max_others_g":
                inner = at.other(self._per(x) == "token")
                return self._over("max_g", x, at, inner, rf",\, {inner.i} \ne {at.i}"), CALL
            case "sum_g" | "sum_gb" | "mean_g" if name != "mean_g" or len(args) > 1:
                inner = at.other(any(self._per(arg) == "token" for arg in args))
                sums = rf"\sum_{{{self._places(name.partition('_')[2], inner, at)}}}"
                if name != "mean_g":
                    return f"{sums} {self._written(x, inner, BIG)}", BIG
                weight = self._written(args[1], inner, PRODUCT)
                return rf"\frac{{{sums} {weight}\, {self._written(x, inner, BIG)}}}{{{sums} {weight}}}", CALL
        if name in _CHOSEN:
            return self._holds(ast.Call(ast.Name(name), args, []), at), ATOM
        if name.endswith(("_g", "_r", "_b", "_gb")) and name in FUNCTIONS:
            return self._over(name, x, at), CALL
        named = {"log": r"\log", "min": r"\min", "max": r"\max", "tanh": r"\tanh", "k3": r"\mathrm{k}_3"}
        head = named.get(name, rf"\operatorname{{{name}}}".replace("_", r"\_"))
        return head + _round(", ".join(self._written(arg, at) for arg in args)), CALL

    def _over(self, name: str, x: ast.expr, at: At, inner: At | None = None, but: str = "") -> str:
        """A mean, deviation or maximum over a group, the rollout or the mini-batch. but: a condition on its members."""
        inner = inner or at.other(self._per(x) == "token")
        what, kind = name.split("_")
        head = r"\max" if what == "max" else rf"\operatorname{{{what}}}"
        return f"{head}_{{{self._places(kind, inner, at)}{but}}}" + _round(self._written(x, inner))

    @staticmethod
    def _places(kind: str, inner: At, at: At) -> str:
        group, batch = rf"\mathcal{{G}}_{{{at.i}}}", r"\mathrm{batch}"
        every = {"g": group, "r": r"\mathrm{rollout}", "b": batch, "gb": rf"{group} \cap {batch}"}[kind]
        return rf"{inner.i} \in {every}" if inner.t == at.t else rf"({inner.i},{inner.t}) \in {every}"

    def _exp(self, x: ast.expr, at: At) -> str:
        """A ratio of probabilities where x is a log-ratio."""
        match x:
            case ast.Name(id="d"):
                return self._exp(ast.BinOp(ast.Name("logp"), ast.Sub(), ast.Name("logp_old")), at)
            case ast.Name(id=name) if name.startswith("logp") and name in GIVEN:
                return self.symbol(name, at).removeprefix(r"\log")
            case ast.BinOp(op=ast.Sub(), left=ast.Name() as left, right=ast.Name() as right):
                above, below = self._exp(left, at), self._exp(right, at)
                if above.startswith(r"\pi") and below.startswith(r"\pi"):
                    return rf"\frac{{{above}}}{{{below}}}"
        text = self._written(x, at)
        return rf"\exp{_round(text)}" if "frac" in text or "(" in text or len(text) > 40 else f"e^{{{text}}}"

    def _per(self, tree: ast.expr) -> str:
        """The domain of a part: a token, a response, a named reward, or none (empty)."""
        if isinstance(tree, ast.Name):
            entries: Mapping[str, Any] = GIVEN if tree.id in GIVEN else self.nodes
            return entries[tree.id].per if tree.id in entries else ""
        if isinstance(tree, ast.Call) and (gives := self.functions[ast.unparse(tree.func)].gives) != "same":
            return "token" if gives == "condition" else gives
        below = tree.args if isinstance(tree, ast.Call) else ast.iter_child_nodes(tree)
        pers = {self._per(part) for part in below if isinstance(part, ast.expr)}
        return next((per for per in ("token", "named", "response") if per in pers), "")


def called(lines: Iterable[Node]) -> dict[str, Function]:
    """The functions that ship, and those of a user's own that lines call."""
    return FUNCTIONS | {node.op: node.function for line in lines for node in line.below() if node.function}


def number(value: float) -> str:
    """A number, powers of ten spelt out."""
    digits, _, power = f"{value:.6g}".partition("e")
    before = {"1": "", "-1": "-"}.get(digits, rf"{digits} \cdot ")
    return f"{before}10^{{{int(power)}}}" if power else digits


def _letters(text: str) -> int:
    """About as many letters as are set."""
    return len(re.sub(r"\\[A-Za-z]+|[{}_^\\ ]", "", text))


def _round(text: str, left: str = "(", right: str = ")") -> str:
    """In brackets, as tall as what is inside."""
    tall = any(part in text for part in (r"\frac", r"\dfrac", r"\sum", r"\begin", r"\binom"))
    return rf"\left{left}{text}\right{right.strip()}" if tall else f"{left}{text}{right}"


def equation(row: Row) -> list[str]:
    """The lines of a row that are read, J with its average first: a cell of a table of methods."""
    sums = SUMS[row.average][0] if row.average in SUMS else f"Σ_i Σ_t ({row.average})"
    lines = {name: " ".join(row.lines[name].split()) for name in row.formula.nodes}
    return [f"J = {sums} [ {lines.pop('J')} ]", *(f"{name} = {text}" for name, text in lines.items())]


def words(row: Row) -> list[str]:
    """Names that the lines, the average and the selection of a row read, in their order."""
    average = AVERAGES.get(row.average, row.average)
    return list(dict.fromkeys(_WORD.findall(" ".join([*equation(row), average, row.keep]))))


def read_constants(row: Row) -> dict[str, Constant]:
    """The constants that are read, in their order."""
    return {name: row.constants[name] for name in words(row) if name in row.constants}


def latex_lines(row: Row) -> tuple[list[str], list[str]]:
    """The equations, J first, `&` before each sign, and what is to be said of their signs, a part each, constants
    last."""
    nodes = row.formula.nodes
    writer = Writer(nodes)
    average = writer.expression(row.average, At("i", "t"), BIG) if row.average not in SUMS else ""
    sums = rf"\sum_{{i}} \sum_{{t}} {average}" if average else SUMS[row.average][1]
    lines = [writer.line("J", row.lines["J"], sums)]
    lines += [writer.line(name, row.lines[name]) for name in nodes if name != "J"]
    lines += [line for sign, line in DEFINED.items() if any(sign in text for text in lines)]
    clauses = [words for sign, words in SAID.items() if any(sign in line for line in lines)]
    clauses += [
        f"${writer.symbol(name, At())} = {number(constant.value)}$" for name, constant in read_constants(row).items()
    ]
    clauses += ["responses that were cut at the limit are left out"] * bool(row.keep)
    return lines, clauses


def to_latex(row: Row) -> str:
    """An `align*` environment and a sentence about its signs (needs amsmath). Raises UserError, with a caret under the
    word, for what is wrong in a line."""
    lines, clauses = latex_lines(row)
    sources = [f"{name}: {constant.source}" for name, constant in read_constants(row).items()]
    head = "".join(f"% {' '.join(text.split())}\n" for text in (f"{row.name}: {row.about}", *row.departs, *sources))
    body = " \\\\\n".join(f"  {line}" for line in lines)
    return f"{head}\\begin{{align*}}\n{body}\n\\end{{align*}}\n" + (f"where {', '.join(clauses)}.\n" if clauses else "")
