"""Formulas that nobody wrote: each against plain loops over its text, and against what must not change it."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tepo.objectives import Objective, TokenBatch
from tepo.objectives.testing.case import LIMIT, TabularCase, make_case

A = "(R - mean_g(R)) / (std_g(R) + 1e-6)"


# texts ----------------------------------------------------------------------------------------------------------------
NUMBERS = st.sampled_from(("0", "0.5", "1", "2", "5", "L", "N", "B", "sqrt(L)", "log(L)", "max(L, 3)", "clip(L, 1, 3)"))
RESPONSES = st.sampled_from(("T", "finished", "mean_i(d)", "sum_i(H)", "A"))
TOKENS = st.sampled_from(("w", "d", "H", "logp", "logp_old", "t", "w*A", "clip(w, 0.8, 1.2)*A", "sg(w)", "tokens(2)"))
CONDITIONS = st.sampled_from(("(A > 0)", "(d > 0)", "(t > 2)", "(T > 3)", "(L > 5)", "(L > 6)", "(finished > 0)"))


def _of(*templates: str, **parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A template with its places filled."""
    return st.builds(lambda text, **filled: text.format(**filled), st.sampled_from(templates), **parts)


_ANY = ("min({x}, {y})", "max({x}, {y})", "min({y}, {x}, 1)", "max({x}, {y}, {z})", "clip({x}, 0.5, 2)")
_ANY += ("clip({x}, min({y}, {z}), max({y}, {z}))", "({x} + {y})", "({x} - {y})", "{x}*{y}", "{x}/(1 + abs({y}))")
_ANY += ("exp({x})", "sqrt(1 + abs({x}))", "abs({x})", "sigmoid({x})", "k2({x})", "k3({x})", "sg({x})", "-{x}")
_ANY += ("where({c}, {x}, {y})", "{c}*{x}", "{x}*(~{c} | (A > 0))", "expm1({x})")
WITHIN_RESPONSE = ("mean_i({x})", "sum_i({x})", "max_i({x})")
OVER_BATCH = ("mean_b(tokens({x}))", "mean_b(responses({x}))", "std_b(responses({x}))", "max_b(tokens({x}))")


def _grown(token: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    response = RESPONSES | _of(*WITHIN_RESPONSE, x=token.map(lambda text: f"({text} + 0*d)"))
    of_group = _of("sum_gb({x})", "max_gb({x})", "1/sum_gb(1 + abs({x}))", *OVER_BATCH, x=response)
    every = token | response | NUMBERS | of_group
    return _of(*_ANY, x=every, y=every, z=every, c=CONDITIONS) | _of("prefix_mean_i({x} + 0*d)", x=every)


EXPRESSIONS = st.recursive(TOKENS, _grown, max_leaves=6)


# loops ----------------------------------------------------------------------------------------------------------------
def _exp(x: float) -> float:
    return math.exp(min(x, 20.0))


PLAIN: dict[str, Callable[..., Any]] = {
    "exp": _exp, "expm1": lambda x: math.expm1(min(x, 20.0)), "log": math.log, "sqrt": math.sqrt, "abs": abs,
    "sigmoid": lambda x: 1/(1 + math.exp(-x)) if x > 0 else math.exp(x)/(1 + math.exp(x)), "k2": lambda x: x*x/2,
    "k3": lambda x: math.expm1(-max(x, -20.0)) + max(x, -20.0), "min": min, "max": max, "sg": float,
    "clip": lambda x, low, high: min(max(x, low), high), "where": lambda c, x, y: x if c else y,
    "tokens": float, "responses": float,
}  # fmt: skip
BINARY: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
}  # fmt: skip


class Loops:
    """The value of a text at each token, one number at a time."""

    def __init__(self, batch: TokenBatch, lines: Mapping[str, str], keep: bool) -> None:
        assert batch.group_ids is not None
        assert batch.finished is not None
        self.batch, self.groups = batch, batch.group_ids.tolist()
        self.lines = {name: ast.parse(text, mode="eval").body for name, text in lines.items()}
        self.lengths, self.finished = batch.lengths.tolist(), batch.finished.tolist()
        self.kept = [i for i, size in enumerate(self.lengths) if size and (self.finished[i] or not keep)]
        self.made: dict[tuple[int, int, int], float] = {}
        self.flat = {
            name: getattr(batch, name).tolist() for name in ("logprobs", "old_logprobs", "entropies", "advantages")
        }

    def over(self, tree: ast.expr, i: int) -> list[float]:
        return [self.value(tree, i, t) for t in range(self.lengths[i])]

    def value(self, tree: ast.expr, i: int, t: int) -> Any:
        key = (id(tree), i, t)
        if key not in self.made:
            self.made[key] = self._value(tree, i, t)
        return self.made[key]

    def _value(self, tree: ast.expr, i: int, t: int) -> Any:
        match tree:
            case ast.Constant(value=value):
                return float(value)  # type: ignore[arg-type]
            case ast.Name(id=name):
                return self.value(self.lines[name], i, t) if name in self.lines else self.given(name, i, t)
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return not self.value(operand, i, t)
            case ast.UnaryOp(operand=operand):
                return -self.value(operand, i, t)
            case ast.BinOp(op=op, left=left, right=right):
                return BINARY[type(op)](self.value(left, i, t), self.value(right, i, t))
            case ast.Compare(left=left, comparators=[right]):
                return self.value(left, i, t) > self.value(right, i, t)
            case ast.Call(func=ast.Name(id=name), args=args):
                return self.called(name, args, i, t)
        raise AssertionError(ast.dump(tree))

    def given(self, name: str, i: int, t: int) -> float:
        place = sum(self.lengths[:i]) + t
        logp, old, entropy, advantage = (values[place] for values in self.flat.values())
        named = {"logp": logp, "logp_old": old, "d": logp - old, "w": _exp(logp - old), "H": entropy, "A": advantage}
        counts = {"t": t + 1, "T": self.lengths[i], "finished": self.finished[i], "L": LIMIT, "B": len(self.kept)}
        return {**named, **counts, "N": sum(self.lengths[j] for j in self.kept)}[name]

    def called(self, name: str, args: list[ast.expr], i: int, t: int) -> float:
        x = args[0]
        if name in PLAIN:
            return PLAIN[name](*(self.value(part, i, t) for part in args))
        what, end = name.rsplit("_", 1)
        if end == "i":
            values = self.over(x, i)[: t + 1] if what == "prefix_mean" else self.over(x, i)
        elif end == "gb":
            values = [self.value(x, j, 0) for j in self.kept if self.groups[j] == self.groups[i]]
        elif isinstance(x, ast.Call) and isinstance(x.func, ast.Name) and x.func.id == "responses":
            values = [self.value(x, j, 0) for j in self.kept]
        else:
            values = [value for j in self.kept for value in self.over(x, j)]
        mean = math.fsum(values) / len(values)
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1))
        return {"mean": mean, "prefix_mean": mean, "sum": math.fsum(values), "max": max(values), "std": spread}[what]

    def summed(self, text: str) -> tuple[float, float]:
        """The mean over the tokens in the loss, and that of the sizes."""
        tree = ast.parse(text, mode="eval").body
        values = [value for i in self.kept for value in self.over(tree, i)]
        return math.fsum(values) / len(values), math.fsum(map(abs, values)) / len(values)


def gradient(made: Objective, case: TabularCase, batch: TokenBatch) -> tuple[float, Tensor]:
    """The loss, and its slope by the logits [N, V]."""
    out = made.loss(batch, made.prepare(batch, salt=1)).loss
    return float(out.detach()), torch.autograd.grad(out, case.logits, retain_graph=True)[0]


def close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-9 * (1e-3 + other.abs().max()))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    text=EXPRESSIONS,
    constant=st.sampled_from(("", " + 3", " - L")),
    keep=st.booleans(),
    drift=st.sampled_from((0.0, 0.5)),
)
def test_a_formula_is_what_loops_make_of_its_text(text: str, constant: str, keep: bool, drift: float):
    """Its value; its gradient in one micro-batch or in one for each response, and without what was cut."""
    lines, J = {"w": "exp(d)", "x": text}, f"w*A + 0.1*x{constant}"
    made = Objective("mine", {"A": A, **lines, "J": J}, {}, keep="finished" * keep)
    case = make_case(0, drift=drift)
    case = replace(case, finished=case.finished & (torch.arange(9) < 6))  # a whole group is cut
    batch = case.batch(made)
    loss, slope = gradient(made, case, batch)

    expected, size = Loops(batch, lines, keep).summed(J)
    assert loss == pytest.approx(-expected, rel=1e-9, abs=1e-9 * (1 + size))
    assert slope.isfinite().all() or not math.isfinite(loss)

    plan = made.prepare(batch, salt=1)
    parts = [made.loss(batch.select([i]), plan.select([i])).loss for i in range(9)]
    assert close(torch.autograd.grad(sum(parts), case.logits, retain_graph=True)[0], slope)

    if keep:
        left = replace(made, keep="")
        assert close(gradient(left, case, batch.select(case.finished))[1], slope)
