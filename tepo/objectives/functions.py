"""The functions and operators of the language: what each takes, gives and computes.

A value is a number, or a tensor of one dimension: [S] one a response, [N] one a token, [S, K] one a named reward.
Values of responses, and all of a rollout, are float64; those of tokens in the loss have the dtype of the batch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tepo.formula.graph import Node
from tepo.formula.language import TOP
from tepo.objectives import own_functions
from tepo.objectives.batch import Comm, Groups, TokenBatch, all_sum
from tepo.objectives.segments import prefix_mean, segment_max, segment_sum, sequence_mean
from tepo.objectives.selection import covariance, draws, largest, order, top_tokens

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

    @property
    def per_token(self) -> bool:
        """Tell whether values of responses are held one a token, in the dtype of the batch, as they are in a loss."""
        return isinstance(self.source, TokenBatch)

    def _dtype(self, per: str) -> torch.dtype:
        return torch.float64 if per == "response" and not self.per_token else self.dtype

    def spread(self, value: Tensor) -> Tensor:
        """A value of each response [S] as it is held here."""
        return value.index_select(0, self.source.sequence).to(self.dtype) if self.per_token else value.double()

    def typed(self, value: Value, per: str) -> Value:
        """A condition as 0 or 1 in the dtype of its place; everything else as it is."""
        return value.to(self._dtype(per)) if isinstance(value, Tensor) and value.dtype == torch.bool else value

    def number(self, value: Value, per: str) -> Tensor:
        """A number as a tensor without dimensions in the dtype of its place: torch would take float32."""
        if isinstance(value, Tensor):
            return value
        return torch.full((), value, dtype=self._dtype(per), device=self.lengths.device)

    def lift(self, value: Value, per: str, to: str) -> Value:
        """A response's value on each of its tokens, or on each of its named rewards."""
        if per != "response" or to == per or self.per_token or not isinstance(value, Tensor) or value.dim() == 0:
            return value
        if to == "named":
            return value[:, None]
        lifted = value.index_select(0, self.source.sequence)
        return lifted if value.dtype == torch.bool else lifted.to(self.dtype)

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


class _Sum(torch.autograd.Function):
    """The sum over each response, on each of its tokens. A symmetric map, so its backward pass is itself."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, lengths: Tensor, sequence: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(lengths, sequence)
        return segment_sum(value, lengths).to(value.dtype).index_select(0, sequence)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        lengths, sequence = ctx.saved_tensors
        return segment_sum(gradient, lengths).to(gradient.dtype).index_select(0, sequence), None, None


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
    taken = (other < one if low else other > one) | other.isnan()
    return torch.where(taken, other, one)  # half the backward pass of torch.minimum, and no NaN is lost either


def k3(x: Tensor) -> Tensor:
    """exp(-x) - 1 + x, held as a whole below x = -20. Schulman's estimate of a KL from the log-ratio x."""
    held = x.clamp(min=-TOP)
    return torch.expm1(-held) + held


def comb(n: Tensor, k: float) -> Tensor:
    """n over k; 0 for n < k."""
    made = torch.ones_like(n)
    for taken in range(int(k)):
        made = made * (n - taken).clamp(min=0) / (taken + 1)
    return made


# over a response ------------------------------------------------------------------------------------------------------
def _mean_i(scope: Scope, x: Tensor) -> Tensor:
    if scope.per_token:
        return sequence_mean(x, scope.lengths, scope.source.sequence)
    return segment_sum(x, scope.lengths) / scope.lengths.clamp(min=1)


def _sum_i(scope: Scope, x: Tensor) -> Tensor:
    return _Sum.apply(x, scope.lengths, scope.source.sequence) if scope.per_token else segment_sum(x, scope.lengths)


def _max_i(scope: Scope, x: Tensor) -> Tensor:
    top = segment_max(x if scope.per_token else x.double(), scope.lengths)
    return top.index_select(0, scope.source.sequence) if scope.per_token else torch.where(scope.lengths > 0, top, 0.0)


# over a group, of a rollout -------------------------------------------------------------------------------------------
def reduced(values: Tensor, index: Tensor, count: int, how: str) -> Tensor:
    start = {"sum": 0.0, "amax": -torch.inf, "amin": torch.inf}[how]
    made = values.new_full((count, *values.shape[1:]), start)
    if how == "sum":
        return made.index_add(0, index, values)
    places = index if values.dim() == 1 else index[:, None].expand_as(values)
    return made.scatter_reduce(0, places, values, how)


def _mean(values: Tensor, index: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """The mean of each set on each of its values; that of like values is that value exactly."""
    weights = torch.ones_like(values) if weights is None else weights
    total, weight = (reduced(part, index, count, "sum") for part in (weights * values, weights))
    top, bottom = (reduced(values, index, count, how) for how in ("amax", "amin"))
    return torch.where(top == bottom, top, total / torch.where(weight == 0, 1.0, weight))[index]


def _std(values: Tensor, index: Tensor, count: int) -> Tensor:
    """The standard deviation of each set with n - 1 below, on each of its values; 0 for one alone and for like ones."""
    spread = reduced((values - _mean(values, index, count)) ** 2, index, count, "sum")
    size = reduced(torch.ones_like(values), index, count, "sum")
    return (spread / (size - 1).clamp(min=1)).sqrt()[index]


def _mean_g(scope: Scope, x: Tensor, weights: Tensor | None = None) -> Tensor:
    index, count = scope.groups(x)
    return _mean(x, index, count, weights)


def _sum_g(scope: Scope, x: Tensor) -> Tensor:
    index, count = scope.groups(x)
    return reduced(x, index, count, "sum")[index]


def _max_others_g(scope: Scope, x: Tensor) -> Tensor:
    index, count = scope.groups(x)
    best = reduced(x, index, count, "amax")[index]
    number = reduced((x == best).double(), index, count, "sum")[index]
    second = reduced(torch.where(x == best, -torch.inf, x), index, count, "amax")[index]
    return torch.where((x < best) | (number > 1), best, torch.where(second == -torch.inf, x, second))


def _share(x: Tensor, member: Tensor, index: Tensor, count: int) -> Tensor:
    """x over the mean of x among the members of each set, 0 on the others; 1 where all of these are 0."""
    number = reduced(member.double(), index, count, "sum")[index]
    mine = torch.where(member, x, 0.0)
    mine = torch.where(reduced(mine, index, count, "sum")[index] == 0, member.double(), mine)
    total = reduced(mine, index, count, "sum")[index]
    return mine / torch.where(total == 0, 1.0, total) * number


# over the rollout, or over the mini-batch, and all ranks --------------------------------------------------------------
def _all_mean(scope: Scope, x: Tensor, spelled: str) -> Tensor:
    """The mean over all ranks, a number; of responses in a mini-batch: of those that are not empty."""
    x = x.double()
    if spelled == "responses" and scope.per_token:
        x = x[scope.source.positions == 0]  # one of each that is not empty
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


def _fold(low: bool) -> Callable[..., Value]:
    def run(scope: Scope, *values: Value) -> Value:
        made = values[0]
        for value in values[1:]:
            made = _smaller(made, value, low)
        return made

    return run


def _clip(scope: Scope, x: Value, low: Value, high: Value) -> Value:
    if isinstance(low, Tensor) or isinstance(high, Tensor) or low > high:
        return _smaller(_smaller(x, low, False), high, True)
    return x.clamp(low, high)


RUN: dict[str, Callable[..., Value]] = {
    "exp": lambda s, x: x.clamp(max=TOP).exp(),
    "expm1": lambda s, x: x.clamp(max=TOP).expm1(),
    "log": lambda s, x: x.log(),
    "sqrt": lambda s, x: x.sqrt(),
    "abs": lambda s, x: x.abs(),
    "sigmoid": lambda s, x: x.sigmoid(),
    "k2": lambda s, x: 0.5 * x * x,
    "k3": lambda s, x: k3(x),
    "min": _fold(True),
    "max": _fold(False),
    "clip": _clip,
    "where": lambda s, c, a, b: torch.where(c, a, b),
    "comb": lambda s, n, k: comb(n, k),
    "sg": lambda s, x: x.detach() if isinstance(x, Tensor) else x,
    "tokens": lambda s, x: s.lift(x, "response", "token"),
    "responses": lambda s, x: x,
    "mean_i": _mean_i,
    "sum_i": _sum_i,
    "max_i": _max_i,
    "prefix_mean_i": lambda s, x: prefix_mean(x, s.lengths, s.source.sequence),
    "mean_g": _mean_g,
    "std_g": lambda s, x: _std(x, *s.groups(x)),
    "sum_g": _sum_g,
    "max_others_g": _max_others_g,
    "share_g": lambda s, x, m: _share(x, m, *s.groups(x)),
    "share_t": lambda s, x, m: _share(x, s.lift(m, "response", "token") if m.shape != x.shape else m, *s.columns()),
    "sum_k": lambda s, x: x.sum(1),
    "mean_r": _all_mean,
    "std_r": _all_std,
    "mean_b": _all_mean,
    "max_b": _all_max,
    "cov_b": lambda s, x, y: covariance(x, y, s.comm),
    "top_b": _top_b,
    "first_b": _first_b,
    "draw_b": _draw_b,
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

KEPT = ("where", "share_g", "share_t", "draw_b")  # take a condition as it is
LIFTING = ("cov_b", "top_b", "first_b", "draw_b")  # of tokens, whatever their arguments are of


def compute(node: Node, scope: Scope, values: list[Value]) -> Value:
    """The value of a node from those of its arguments."""
    op, function = node.op, node.function
    if function is not None and function.file:
        return _own(node, scope, values)
    elementwise = function is None or function.gives == "same"
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
    spelled = [node.args[0].spelled] if function is not None and function.takes == ("all",) else []
    return RUN[op](scope, *values, *spelled)


def _own(node: Node, scope: Scope, values: list[Value]) -> Tensor:
    """The value of a function of a user's own."""
    assert node.function is not None
    given: list[Value] = []
    for word, part, value in zip(node.function.takes, node.args, values, strict=False):
        per = {"any": node.per, "condition": "token"}.get(word, part.per)
        lifted = scope.lift(value, part.per, per)
        exact = word in ("condition", "number", "number?")
        given.append(lifted if exact else scope.number(scope.typed(lifted, per), per))
    groups = scope.groups(scope.lengths)[0] if node.stage == "rollout" else None
    layout = own_functions.Layout(scope.dtype, scope.source, node.stage, scope.comm, groups)
    return own_functions.run(node.function, node.op, layout, given)
