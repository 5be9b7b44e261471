"""The functions and operators of the language: what each takes, gives and computes.

A value is a number, or a tensor of one dimension: [S] one a response, [N] one a token, [S, K] one a named reward.
Values of responses, and all of a rollout, are float64; those of tokens in the loss have the dtype of the batch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tepo.objectives.axes.moments import largest
from tepo.objectives.axes.selection import covariance, draws, order, top_tokens
from tepo.objectives.batch import Comm, Groups, TokenBatch, all_sum
from tepo.objectives.formula.graph import Node
from tepo.objectives.segments import prefix_mean, segment_sum

TOP = 20.0  # exp and k3 are held above exp(20), with no gradient there; verl holds log-ratios at +-20
MOST = 64  # of k in comb(n, k)
Value = Any  # float | Tensor


@dataclass
class Scope:
    """A place where values are computed: responses of these lengths, in this dtype, over these ranks."""

    source: Groups | TokenBatch
    dtype: torch.dtype
    comm: Comm | None = None
    salt: int = 0
    keys: dict[str, tuple[Tensor, int]] = field(default_factory=dict)

    @property
    def lengths(self) -> Tensor:
        return self.source.lengths

    def typed(self, value: Value, per: str) -> Value:
        """A condition as 0 or 1 in the dtype of its place; everything else as it is."""
        if isinstance(value, Tensor) and value.dtype == torch.bool:
            return value.to(torch.float64 if per == "response" else self.dtype)
        return value

    def number(self, value: Value, per: str) -> Tensor:
        """A number as a tensor without dimensions in the dtype of its place: torch would take float32."""
        if isinstance(value, Tensor):
            return value
        return torch.full(
            (), value, dtype=torch.float64 if per == "response" else self.dtype, device=self.lengths.device
        )

    def lift(self, value: Value, per: str, to: str) -> Value:
        """A response's value on each of its tokens, or on each of its named rewards."""
        if per != "response" or to == per or not isinstance(value, Tensor) or value.dim() == 0:
            return value
        if to == "named":
            return value[:, None]
        if value.dtype == torch.bool or not value.requires_grad:
            lifted = value.index_select(0, self.source.sequence)
            return lifted if value.dtype == torch.bool else lifted.to(self.dtype)
        return _Lift.apply(value, self.lengths, self.source.sequence, self.dtype)

    def groups(self, value: Tensor) -> tuple[Tensor, int]:
        """The number of each value's group, and how many groups there are. value: [S], [S, K] or [N]."""
        assert isinstance(self.source, Groups)
        if "group" not in self.keys:
            found, index = torch.unique(self.source.group_ids, return_inverse=True)
            self.keys["group"] = index, found.shape[0]
        index, count = self.keys["group"]
        return (index if value.shape[0] == self.lengths.shape[0] else index[self.source.sequence]), count

    def columns(self) -> tuple[Tensor, int]:
        """The number of each token's (group, position), and how many there are."""
        if "column" not in self.keys:
            index, _ = self.groups(self.lengths)
            width = self.lengths.max().clamp(min=1) if self.lengths.shape[0] else 1
            found, column = torch.unique(
                index[self.source.sequence] * width + self.source.positions, return_inverse=True
            )
            self.keys["column"] = column, found.shape[0]
        return self.keys["column"]


class _Lift(torch.autograd.Function):
    """A response's value on each of its tokens; its backward pass is a sum in float64, the same on every device."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, lengths: Tensor, sequence: Tensor, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(lengths)
        return value.index_select(0, sequence).to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        (lengths,) = ctx.saved_tensors
        return segment_sum(gradient, lengths), None, None, None


class _Sum(torch.autograd.Function):
    """The sum of each response [N] -> float64 [S], or its mean; 0 for an empty one."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, lengths: Tensor, sequence: Tensor, mean: bool) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(lengths, sequence)
        ctx.mean, ctx.dtype = mean, value.dtype
        total = segment_sum(value, lengths)
        return total / lengths.clamp(min=1) if mean else total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        lengths, sequence = ctx.saved_tensors
        own = gradient / lengths.clamp(min=1) if ctx.mean else gradient
        return own.index_select(0, sequence).to(ctx.dtype), None, None, None


def _condition(values: list[Value]) -> int | None:
    """The place of a condition among two factors."""
    return next((at for at in (0, 1) if isinstance(values[at], Tensor) and values[at].dtype == torch.bool), None)


def _divided(node: Node, one: Value, other: Value) -> Value:
    if node.gradient:
        return one / other
    return torch.where((one == 0) & (other == 0), 0.0, one / other)  # nobody differentiates it


def _smaller(one: Value, other: Value, low: bool) -> Value:
    bound = "max" if low else "min"
    for value, limit in ((one, other), (other, one)):
        if not isinstance(limit, Tensor):
            return value.clamp(**{bound: limit})
    return torch.minimum(one, other) if low else torch.maximum(one, other)


def k3(x: Tensor) -> Tensor:
    """exp(-x) - 1 + x, held as a whole below x = -20. Schulman's estimate of a KL from the log-ratio x."""
    held = x.clamp(min=-TOP)
    return torch.expm1(-held) + held


def comb(n: Value, k: float) -> Value:
    """n over k; 0 for n < k."""
    made: Value = torch.ones_like(n) if isinstance(n, Tensor) else 1.0
    for taken in range(int(k)):
        left = (n - taken).clamp(min=0) if isinstance(n, Tensor) else max(n - taken, 0)
        made = made * left / (taken + 1)
    return made


# over a response ------------------------------------------------------------------------------------------------------
def _over_response(mean: bool) -> Callable[..., Tensor]:
    return lambda scope, x: _Sum.apply(x, scope.lengths, scope.source.sequence, mean)


def _max_i(scope: Scope, x: Tensor) -> Tensor:
    top = torch.segment_reduce(x.double(), "max", lengths=scope.lengths, initial=-torch.inf, unsafe=True)
    return torch.where(scope.lengths > 0, top, 0.0)


# over a group, of a rollout -------------------------------------------------------------------------------------------
def _reduced(values: Tensor, index: Tensor, count: int, how: str) -> Tensor:
    start = {"sum": 0.0, "amax": -torch.inf, "amin": torch.inf}[how]
    made = values.new_full((count, *values.shape[1:]), start)
    if how == "sum":
        return made.index_add(0, index, values)
    places = index if values.dim() == 1 else index[:, None].expand_as(values)
    return made.scatter_reduce(0, places, values, how)


def _mean(values: Tensor, index: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """The mean of each set on each of its values; that of like values is that value exactly."""
    weights = torch.ones_like(values) if weights is None else weights
    total, weight = (_reduced(part, index, count, "sum") for part in (weights * values, weights))
    top, bottom = (_reduced(values, index, count, how) for how in ("amax", "amin"))
    return torch.where(top == bottom, top, total / torch.where(weight == 0, 1.0, weight))[index]


def _std(values: Tensor, index: Tensor, count: int) -> Tensor:
    """The standard deviation of each set with n - 1 below, on each of its values; 0 for one alone and for like ones."""
    spread = _reduced((values - _mean(values, index, count)) ** 2, index, count, "sum")
    size = _reduced(torch.ones_like(values), index, count, "sum")
    return (spread / (size - 1).clamp(min=1)).sqrt()[index]


def _mean_g(scope: Scope, x: Tensor, weights: Tensor | None = None) -> Tensor:
    index, count = scope.groups(x)
    return _mean(x, index, count, weights)


def _sum_g(scope: Scope, x: Tensor) -> Tensor:
    index, count = scope.groups(x)
    return _reduced(x, index, count, "sum")[index]


def _max_others_g(scope: Scope, x: Tensor) -> Tensor:
    index, count = scope.groups(x)
    best = _reduced(x, index, count, "amax")[index]
    number = _reduced((x == best).double(), index, count, "sum")[index]
    second = _reduced(torch.where(x == best, -torch.inf, x), index, count, "amax")[index]
    return torch.where((x < best) | (number > 1), best, torch.where(second == -torch.inf, x, second))


def _share(x: Tensor, member: Tensor, index: Tensor, count: int) -> Tensor:
    """x over the mean of x among the members of each set, 0 on the others; 1 where all of these are 0."""
    number = _reduced(member.double(), index, count, "sum")[index]
    mine = torch.where(member, x, 0.0)
    mine = torch.where(_reduced(mine, index, count, "sum")[index] == 0, member.double(), mine)
    total = _reduced(mine, index, count, "sum")[index]
    return mine / torch.where(total == 0, 1.0, total) * number


# over the rollout, or over the mini-batch, and all ranks --------------------------------------------------------------
def _all_mean(scope: Scope, x: Tensor, spelled: str) -> Tensor:
    """The mean over all ranks, a number; of responses in a mini-batch: of those that are not empty."""
    x = x.double()
    if spelled == "responses" and isinstance(scope.source, TokenBatch):
        x = x[scope.lengths > 0]
    total = all_sum(torch.stack([x.sum(), x.new_tensor(float(x.shape[0]))]), scope.comm)
    top, bottom = largest(x, scope.comm), -largest(-x, scope.comm)
    return torch.where(top == bottom, top, total[0] / total[1].clamp(min=1))


def _all_std(scope: Scope, x: Tensor, spelled: str) -> Tensor:
    x = x.double()
    number = all_sum(x.new_tensor(float(x.shape[0])), scope.comm)
    spread = all_sum(((x - _all_mean(scope, x, spelled)) ** 2).sum(), scope.comm)
    return (spread / (number - 1).clamp(min=1)).sqrt()


def _all_max(scope: Scope, x: Tensor, spelled: str) -> Tensor:
    return largest(x.double(), scope.comm)


def _chosen(scope: Scope, scores: Tensor, share: float, ties: Tensor) -> Tensor:
    batch = scope.source
    count = int(all_sum(batch.lengths.sum().double(), scope.comm))
    return top_tokens(scores.double(), ties, max(1, int(share * count)), scope.comm)


def _top_b(scope: Scope, x: Tensor, share: float) -> Tensor:
    assert isinstance(scope.source, TokenBatch)
    return _chosen(scope, x, share, draws(scope.source, scope.salt))


def _first_b(scope: Scope, x: Tensor, share: float) -> Tensor:
    assert isinstance(scope.source, TokenBatch)
    return _chosen(scope, x, share, order(scope.source, scope.comm).double())


def _draw_b(scope: Scope, condition: Tensor, share: float) -> Tensor:
    assert isinstance(scope.source, TokenBatch)
    number = draws(scope.source, scope.salt)
    return _chosen(scope, torch.where(condition, -number, -torch.inf), share, number)


@dataclass(frozen=True)
class Function:
    """A function of the language. takes: what each argument is: `any`, `token`, `each` (a
    token or, lifted, a response), `condition`, `number` (a constant),
    `all` (a token's value, or one that says which it is); a `?` behind it: may be left out. gives: `same` as the
    arguments together, or what it is; `condition`: true or false of a token. stage: where it is computed: anywhere,
    rollout, or mini-batch (once, before the first backward). doc: for the table of the documentation."""

    takes: tuple[str, ...]
    gives: str
    stage: str
    run: Callable[..., Value]
    doc: str

    @property
    def most(self) -> int:
        return 8 if self.takes[-1].endswith("*") else len(self.takes)

    @property
    def least(self) -> int:
        return sum(not one.endswith("?") for one in self.takes)


def _f(takes: str, gives: str, doc: str, run: Callable[..., Value], stage: str = "") -> Function:
    return Function(tuple(takes.split()), gives, stage, run, doc)


def _fold(low: bool) -> Callable[..., Value]:
    def run(scope: Scope, *values: Value) -> Value:
        made = values[0]
        for value in values[1:]:
            made = _smaller(made, value, low)
        return made

    return run


def _clip(scope: Scope, x: Value, low: Value, high: Value) -> Value:
    return _smaller(_smaller(x, low, False), high, True)


FUNCTIONS: dict[str, Function] = {
    "exp": _f("any", "same", "e to the x, held above x = 20 without gradient", lambda s, x: x.clamp(max=TOP).exp()),
    "expm1": _f("any", "same", "exp(x) - 1", lambda s, x: x.clamp(max=TOP).expm1()),
    "log": _f("any", "same", "natural logarithm", lambda s, x: x.log()),
    "sqrt": _f("any", "same", "square root", lambda s, x: x.sqrt()),
    "abs": _f("any", "same", "size without sign", lambda s, x: x.abs()),
    "sigmoid": _f("any", "same", "1/(1 + exp(-x))", lambda s, x: x.sigmoid()),
    "k2": _f("any", "same", "x^2/2, the estimate of a KL from the log-ratio x", lambda s, x: 0.5 * x * x),
    "k3": _f("any", "same", "exp(-x) - 1 + x, held as a whole below x = -20", lambda s, x: k3(x)),
    "min": _f("any any*", "same", "the smallest", _fold(True)),
    "max": _f("any any*", "same", "the largest", _fold(False)),
    "clip": _f("any any any", "same", "x held between two bounds", _clip),
    "where": _f(
        "condition any any",
        "same",
        "the second where the condition holds, else the third",
        lambda s, c, a, b: torch.where(c, a, b),
    ),
    "comb": _f("any number", "same", f"n over k, 0 for n < k; k a constant up to {MOST}", lambda s, n, k: comb(n, k)),
    "sg": _f("any", "same", "x without its gradient", lambda s, x: x.detach() if isinstance(x, Tensor) else x),
    "tokens": _f("any", "token", "a response's value on each token", lambda s, x: s.lift(x, "response", "token")),
    "responses": _f("any", "response", "says that a mean over all is one over responses", lambda s, x: x),
    "mean_i": _f("token", "response", "mean over the response's tokens; 0 for an empty one", _over_response(True)),
    "sum_i": _f("token", "response", "sum over the response's tokens", _over_response(False)),
    "max_i": _f("token", "response", "largest over the response's tokens; 0 for an empty one", _max_i),
    "prefix_mean_i": _f(
        "token",
        "token",
        "mean over the response's tokens up to this one",
        lambda s, x: prefix_mean(x, s.lengths, s.source.sequence),
    ),
    "mean_g": _f(
        "any any?",
        "same",
        "mean over the group, weighted by a second argument; that of like values is that value exactly",
        _mean_g,
        "rollout",
    ),
    "std_g": _f("any", "same", "standard deviation over the group", lambda s, x: _std(x, *s.groups(x)), "rollout"),
    "sum_g": _f("any", "same", "sum over the group", _sum_g, "rollout"),
    "max_others_g": _f("any", "same", "largest of the others in the group; alone: its own", _max_others_g, "rollout"),
    "share_g": _f(
        "any condition",
        "same",
        "x over its mean among the members of the group, 0 on the others; 1 where all are 0",
        lambda s, x, m: _share(x, m, *s.groups(x)),
        "rollout",
    ),
    "share_t": _f(
        "token condition",
        "token",
        "x over its mean among the members at this position in the group, 0 on the others; 1 where all are 0",
        lambda s, x, m: _share(x, s.lift(m, "response", "token") if m.shape != x.shape else m, *s.columns()),
        "rollout",
    ),
    "sum_k": _f("named", "response", "sum over named rewards", lambda s, x: x.sum(1), "rollout"),
    "mean_r": _f("all", "", "mean over the rollout, all ranks", _all_mean, "rollout"),
    "std_r": _f("all", "", "standard deviation over the rollout, all ranks (n - 1)", _all_std, "rollout"),
    "mean_b": _f("all", "", "mean over the mini-batch, all ranks", _all_mean, "mini-batch"),
    "max_b": _f("all", "", "largest of the mini-batch, all ranks", _all_max, "mini-batch"),
    "cov_b": _f(
        "each each",
        "token",
        "(x - mean)(y - mean), means over the mini-batch, all ranks",
        lambda s, x, y: covariance(x, y, s.comm),
        "mini-batch",
    ),
    "top_b": _f(
        "each number",
        "condition",
        "the share of the mini-batch's tokens with the largest x, at least one; ties by lot",
        _top_b,
        "mini-batch",
    ),
    "first_b": _f(
        "each number",
        "condition",
        "the share of the mini-batch's tokens with the largest x, at least one; ties by response and position",
        _first_b,
        "mini-batch",
    ),
    "draw_b": _f(
        "condition number",
        "condition",
        "so many tokens as the share of the mini-batch's, at least one, drawn among those of the condition",
        _draw_b,
        "mini-batch",
    ),
}
OPERATORS: dict[str, Callable[..., Value]] = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "**": lambda one, other: one**other,
    "neg": lambda one: -one,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
}
FOLDED: dict[str, Callable[..., float]] = {  # functions of numbers alone
    "exp": lambda x: math.exp(min(x, TOP)),
    "expm1": lambda x: math.expm1(min(x, TOP)),
    "log": math.log,
    "sqrt": math.sqrt,
    "abs": abs,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "k2": lambda x: x * x / 2,
    "k3": lambda x: math.expm1(-max(x, -TOP)) + max(x, -TOP),
    "min": min,
    "max": max,
    "clip": lambda x, a, b: min(max(x, a), b),
    "comb": comb,
    "sg": lambda x: x,
}


KEPT = ("where", "share_g", "share_t", "draw_b")  # take a condition as it is
LIFTING = ("cov_b", "top_b", "first_b", "draw_b")  # of tokens, whatever their arguments are of


def compute(node: Node, scope: Scope, values: list[Value]) -> Value:
    """The value of a node from those of its arguments."""
    op = node.op
    elementwise = op not in FUNCTIONS or FUNCTIONS[op].gives == "same"
    if elementwise or op in LIFTING:
        to = node.per if elementwise else "token"
        values = [scope.lift(value, part.per, to) for value, part in zip(values, node.args, strict=True)]
    match op:
        case "~":
            return ~values[0]
        case "&":
            return values[0] & values[1]
        case "|":
            return values[0] | values[1]
        case "*" if (mask := _condition(values)) is not None:  # it chooses: what it leaves out may be infinite
            return torch.where(values[mask], scope.number(scope.typed(values[1 - mask], node.per), node.per), 0.0)
        case "where":
            return torch.where(
                values[0], *(scope.number(scope.typed(value, node.per), node.per) for value in values[1:])
            )
    if op not in KEPT:
        values = [scope.typed(value, part.per) for value, part in zip(values, node.args, strict=True)]
    if op == "/":
        return _divided(node, *(scope.number(value, node.per) for value in values))
    if op == "*":
        return values[0] * values[1]
    if op in OPERATORS:
        return OPERATORS[op](*values)
    spelled = [node.args[0].spelled] if FUNCTIONS[op].takes == ("all",) else []
    return FUNCTIONS[op].run(scope, *values, *spelled)
