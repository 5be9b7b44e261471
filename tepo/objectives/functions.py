"""The functions of the language as tensors: the KL estimators, clips, means over a response, group, rollout and batch.

What they take and give is in `tepo.formula.language`."""

from collections.abc import Callable

import torch
from torch import Tensor

from tepo.formula.graph import Node
from tepo.formula.language import OPERATORS, TOP
from tepo.objectives import own_functions
from tepo.objectives.batch import all_sum
from tepo.objectives.group_statistics import best_other, group_mean, group_share, group_std, group_sum
from tepo.objectives.scope import Scope, Value
from tepo.objectives.segments import prefix_mean, segment_max, segment_sum, sequence_mean, sequence_sum
from tepo.objectives.selection import covariance, draws, largest, order, top_tokens


# of each value by itself ----------------------------------------------------------------------------------------------
def k2(x: Tensor) -> Tensor:
    """x^2/2."""
    return 0.5 * x * x


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


def _divided(node: Node, above: Tensor, below: Tensor) -> Tensor:
    """0/0 is 0 where no gradient flows."""
    return above / below if node.gradient else torch.where((above == 0) & (below == 0), 0.0, above / below)


def _bounded(x: Value, bound: Value, low: bool) -> Value:
    """The smaller of two (low), or the larger."""
    for value, limit in ((x, bound), (bound, x)):
        if not isinstance(limit, Tensor):
            return value.clamp(**{"max" if low else "min": limit})
    taken = (bound < x if low else bound > x) | bound.isnan()
    return torch.where(taken, bound, x)  # half the backward pass of torch.minimum, and no NaN is lost either


def _extreme(low: bool) -> Callable[..., Value]:
    def run(scope: Scope, made: Value, *values: Value) -> Value:
        for value in values:
            made = _bounded(made, value, low)
        return made

    return run


def _clip(scope: Scope, x: Value, low: Value, high: Value) -> Value:
    if isinstance(low, Tensor) or isinstance(high, Tensor) or low > high:
        return _bounded(_bounded(x, low, False), high, True)
    return x.clamp(low, high)


# over a response ------------------------------------------------------------------------------------------------------
def _mean_i(scope: Scope, x: Tensor) -> Tensor:
    if scope.per_token:
        return sequence_mean(x, scope.lengths, scope.source.sequence)
    return segment_sum(x, scope.lengths) / scope.lengths.clamp(min=1)


def _sum_i(scope: Scope, x: Tensor) -> Tensor:
    return sequence_sum(x, scope.lengths, scope.source.sequence) if scope.per_token else segment_sum(x, scope.lengths)


def _max_i(scope: Scope, x: Tensor) -> Tensor:
    top = segment_max(x if scope.per_token else x.double(), scope.lengths)
    return top.index_select(0, scope.source.sequence) if scope.per_token else torch.where(scope.lengths > 0, top, 0.0)


# over the rollout, or over the mini-batch, and all ranks --------------------------------------------------------------
def _all_mean(scope: Scope, x: Tensor, spelled: str) -> Tensor:
    """The mean over all ranks, a number; of responses in a mini-batch: of those that are not empty. Of nothing 1: a
    mini-batch whose responses are all filtered has a loss of 0, also where something is over its mean."""
    x = x.double()
    if spelled == "responses" and scope.per_token:
        x = x[scope.source.positions == 0]  # one of each that is not empty
    total = all_sum(torch.stack([x.sum(), x.new_tensor(float(x.shape[0]))]), scope.comm)
    top, bottom = largest(x, scope.comm), -largest(-x, scope.comm)
    mean = torch.where(total[1] > 0, total[0] / total[1].clamp(min=1), 1.0)
    return torch.where(top == bottom, top, mean)


def _all_std(scope: Scope, x: Tensor, spelled: str) -> Tensor:
    x = x.double()
    number = all_sum(x.new_tensor(float(x.shape[0])), scope.comm)
    spread = all_sum(((x - _all_mean(scope, x, spelled)) ** 2).sum(), scope.comm)
    return (spread / (number - 1).clamp(min=1)).sqrt()


def _chosen(scope: Scope, scores: Tensor, share: float, ties: Tensor) -> Tensor:
    count = int(all_sum(scope.lengths.sum().double(), scope.comm))
    return top_tokens(scores.double(), ties, max(1, int(share * count)), scope.comm)


def _draw_b(scope: Scope, condition: Tensor, share: float) -> Tensor:
    number = draws(scope.source, scope.salt)  # type: ignore[arg-type]
    return _chosen(scope, torch.where(condition, -number, -torch.inf), share, number)


RUN: dict[str, Callable[..., Value]] = {
    "exp": lambda s, x: x.clamp(max=TOP).exp(),
    "expm1": lambda s, x: x.clamp(max=TOP).expm1(),
    "log": lambda s, x: x.log(),
    "sqrt": lambda s, x: x.sqrt(),
    "abs": lambda s, x: x.abs(),
    "sigmoid": lambda s, x: x.sigmoid(),
    "k2": lambda s, x: k2(x),
    "k3": lambda s, x: k3(x),
    "min": _extreme(low=True),
    "max": _extreme(low=False),
    "clip": _clip,
    "comb": lambda s, n, k: comb(n, k),
    "sg": lambda s, x: x.detach() if isinstance(x, Tensor) else x,
    "tokens": lambda s, x: s.lift(x, "response", "token"),
    "responses": lambda s, x: x,
    "mean_i": _mean_i,
    "sum_i": _sum_i,
    "max_i": _max_i,
    "prefix_mean_i": lambda s, x: prefix_mean(x, s.lengths, s.source.sequence),
    "mean_g": lambda s, x, *weights: group_mean(x, *s.groups(x), *weights),
    "std_g": lambda s, x: group_std(x, *s.groups(x)),
    "sum_g": lambda s, x: group_sum(x, *s.groups(x)),
    "max_others_g": lambda s, x: best_other(x, *s.groups(x)),
    "share_g": lambda s, x, m: group_share(x, m, *s.groups(x)),
    "share_t": lambda s, x, m: group_share(
        x, s.lift(m, "response", "token") if m.shape != x.shape else m, *s.columns()
    ),
    "sum_k": lambda s, x: x.sum(1),
    "mean_r": _all_mean,
    "std_r": _all_std,
    "mean_b": _all_mean,
    "max_b": lambda s, x, spelled: largest(x.double(), s.comm),
    "cov_b": lambda s, x, y: covariance(x, y, s.comm),
    "top_b": lambda s, x, share: _chosen(s, x, share, draws(s.source, s.salt)),
    "first_b": lambda s, x, share: _chosen(s, x, share, order(s.source, s.comm).double()),
    "draw_b": _draw_b,
}
_CONDITIONS = ("share_g", "share_t", "draw_b")  # take a condition as it is
_OF_TOKENS = ("cov_b", "top_b", "first_b", "draw_b")  # whatever their arguments are of


def compute(node: Node, scope: Scope, values: list[Value]) -> Value:
    """The value of a node from those of its arguments."""
    op, function = node.op, node.function
    if function is not None and function.file:
        return _own(node, scope, values)
    elementwise = function is None or function.gives == "same"
    if elementwise or op in _OF_TOKENS:
        to = node.per if elementwise else "token"
        values = [scope.lift(value, part.per, to) for value, part in zip(values, node.args, strict=True)]
    if op in ("&", "|", "~"):
        return OPERATORS[op](*values)
    if op == "*":
        for mask, value in (values, reversed(values)):
            if isinstance(mask, Tensor) and mask.dtype == torch.bool:  # it chooses: what it leaves out may be infinite
                return torch.where(mask, scope.number(scope.typed(value, node.per), node.per), 0.0)
    if op == "where":
        chosen = (scope.number(scope.typed(value, node.per), node.per) for value in values[1:])
        return torch.where(values[0], *chosen)
    if op not in _CONDITIONS:
        values = [scope.typed(value, part.per) for value, part in zip(values, node.args, strict=True)]
    if op == "/":
        return _divided(node, *(scope.number(value, node.per) for value in values))
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
