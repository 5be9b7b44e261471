"""The functions of the language as tensors: the KL estimators, clips, means over a response, group, rollout and batch.

What they take and give is in `tepo.formula.language`. Values are [S], [S, K] or [N], in a flat batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tepo.common.randomness import mix, uniform
from tepo.formula.graph import Node
from tepo.formula.language import OPERATORS, TOP
from tepo.objectives import own_functions
from tepo.objectives.batch import Collectives, TokenBatch, all_sum, gather, largest
from tepo.objectives.scope import Scope, Value


# of each value by itself ----------------------------------------------------------------------------------------------
def k3(x: Tensor) -> Tensor:
    """exp(-x) - 1 + x, held as a whole below x = -20. Schulman's estimate of a KL from the log-ratio x."""
    log_ratio = x.clamp(min=-TOP)
    return torch.expm1(-log_ratio) + log_ratio


def comb(n: Tensor, k: float) -> Tensor:
    """n over k; 0 for n < k."""
    product = torch.ones_like(n)
    for step in range(int(k)):
        product = product * (n - step).clamp(min=0) / (step + 1)
    return product


class _Extreme(torch.autograd.Function):
    """The smaller or the larger of two values; where they are equal, each takes half of the gradient. As torch.minimum
    in fewer steps."""

    @staticmethod
    def forward(ctx: Any, low: bool, first: Tensor, second: Tensor) -> Tensor:  # type: ignore[override]
        gap = (second - first if low else first - second).nan_to_num_(nan=0.0)  # inf - inf
        ctx.save_for_backward(torch.heaviside(gap, gap.new_full((), 0.5)))
        return torch.minimum(first, second) if low else torch.maximum(first, second)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (share,) = ctx.saved_tensors
        of_first = gradient * share
        parts = zip((of_first, gradient - of_first), ctx.needs_input_grad[1:], strict=True)
        return None, *(part if needs_gradient else None for part, needs_gradient in parts)


def _extreme(low: bool) -> Callable[..., Value]:
    """The smallest or the largest. Tensors that are equal share the gradient, so that their order does not matter; a
    number takes none."""

    def run(scope: Scope, *values: Value) -> Value:
        tensors = [value for value in values if isinstance(value, Tensor)]
        numbers = [value for value in values if not isinstance(value, Tensor)]
        if len(tensors) > 2:
            each = torch.stack(torch.broadcast_tensors(*(value.to(scope.dtype) for value in tensors)))
            extreme = each.amin(0) if low else each.amax(0)
        else:
            extreme = _Extreme.apply(low, *tensors) if len(tensors) == 2 else tensors[0]
        if not numbers:
            return extreme
        return extreme.clamp(max=min(numbers)) if low else extreme.clamp(min=max(numbers))

    return run


def _clip(scope: Scope, x: Value, low: Value, high: Value) -> Value:
    """x held between bounds, and the gradient is that of x where it meets one."""
    if not isinstance(low, Tensor) and not isinstance(high, Tensor):
        return x.clamp(low, high)
    x, low, high = (scope.number(value, "token") for value in (x, low, high))
    x = torch.where((low > x) | low.isnan(), low, x)
    return torch.where((high < x) | high.isnan(), high, x)


# over a response ------------------------------------------------------------------------------------------------------
def segment_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """Sum of each sequence: values [N], lengths [S] -> float64 [S]; 0 for an empty one. Deterministic on every
    device."""
    return torch.segment_reduce(values.double(), "sum", lengths=lengths, initial=0, unsafe=True)


def _spread(values: Tensor, lengths: Tensor, sequence: Tensor, mean: bool) -> Tensor:
    sums = segment_sum(values, lengths)
    return (sums / lengths.clamp(min=1) if mean else sums).to(values.dtype).index_select(0, sequence)


class _Spread(torch.autograd.Function):
    """The sum or mean of each sequence on each of its tokens. A symmetric map, so its backward pass is itself."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, lengths: Tensor, sequence: Tensor, mean: bool) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(lengths, sequence)
        ctx.mean = mean
        return _spread(values, lengths, sequence, mean)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        lengths, sequence = ctx.saved_tensors
        return _spread(gradient, lengths, sequence, ctx.mean), None, None, None


def _tokens(scope: Scope, x: Value) -> Tensor:
    values = scope.number(scope.lift(x, "response", "token"), "token")
    return values if values.dim() else values.to(scope.dtype).repeat(scope.source.tokens)


def _mean_i(scope: Scope, x: Tensor) -> Tensor:
    if scope.per_token:
        return _Spread.apply(x, scope.lengths, scope.source.sequence, True)
    return segment_sum(x, scope.lengths) / scope.lengths.clamp(min=1)


def _sum_i(scope: Scope, x: Tensor) -> Tensor:
    if scope.per_token:
        return _Spread.apply(x, scope.lengths, scope.source.sequence, False)
    return segment_sum(x, scope.lengths)


def _max_i(scope: Scope, x: Tensor) -> Tensor:
    values = x if scope.per_token else x.double()
    top = torch.segment_reduce(values, "max", lengths=scope.lengths, initial=-torch.inf, unsafe=True)
    return top.index_select(0, scope.source.sequence) if scope.per_token else torch.where(scope.lengths > 0, top, 0.0)


def _prefix_mean_i(scope: Scope, x: Tensor) -> Tensor:
    """One cumulative sum over the flat batch in float64, so what stands before a sequence costs it no precision."""
    if not x.shape[0]:
        return x
    if scope.counted is not None:  # nothing infinite of a response that was cut may reach another one
        x = torch.where(scope.counted | x.isfinite(), x, 0)
    running = x.double().cumsum(0)
    before = torch.cat([running.new_zeros(1), running])[scope.source.starts[scope.source.sequence]]
    means = ((running - before) / (scope.source.positions + 1)).to(x.dtype)
    return means if scope.counted is None else torch.where(scope.counted, means, means.detach())


# over the groups of a rollout: index is the number of each value's group, count how many there are --------------------
def reduced(values: Tensor, index: Tensor, count: int, how: str = "sum") -> Tensor:
    """The sum, `amax` or `amin` of each set [count]."""
    start = {"sum": 0.0, "amax": -torch.inf, "amin": torch.inf}[how]
    initial_values = values.new_full((count, *values.shape[1:]), start)
    if how == "sum":
        return initial_values.index_add(0, index, values)
    places = index if values.dim() == 1 else index[:, None].expand_as(values)
    return initial_values.scatter_reduce(0, places, values, how)


def _sum_g(scope: Scope, x: Tensor) -> Tensor:
    index, count = scope.groups(x)
    return reduced(x, index, count)[index]


def group_mean(scope: Scope, x: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean of a group; that of like values is that value exactly, so that their advantage is exactly 0."""
    index, count = scope.groups(x)
    weights = torch.ones_like(x) if weights is None else weights
    total, weight = (reduced(part, index, count) for part in (weights * x, weights))
    top, bottom = (reduced(x, index, count, how) for how in ("amax", "amin"))
    return torch.where(top == bottom, top, total / torch.where(weight == 0, 1.0, weight))[index]


def group_std(scope: Scope, x: Tensor) -> Tensor:
    """The standard deviation of a group with n - 1 below; 0 for one alone and for like ones."""
    index, count = scope.groups(x)
    spread = reduced((x - group_mean(scope, x)) ** 2, index, count)
    size = reduced(torch.ones_like(x), index, count)
    return (spread / (size - 1).clamp(min=1)).sqrt()[index]


def _max_others_g(scope: Scope, x: Tensor) -> Tensor:
    index, count = scope.groups(x)
    best = reduced(x, index, count, "amax")[index]
    number = _sum_g(scope, (x == best).double())
    second = reduced(torch.where(x == best, -torch.inf, x), index, count, "amax")[index]
    return torch.where((x < best) | (number > 1), best, torch.where(second == -torch.inf, x, second))


def _share(values: Tensor, member: Tensor, index: Tensor, count: int) -> Tensor:
    member = member.expand(values.shape)
    number = reduced(member.double(), index, count)[index]
    mine = torch.where(member, values, 0.0)
    mine = torch.where(reduced(mine, index, count)[index] == 0, member.double(), mine)
    total = reduced(mine, index, count)[index]
    return mine / torch.where(total == 0, 1.0, total) * number


# over the rollout, or over the mini-batch, and all ranks --------------------------------------------------------------
def _one_each(scope: Scope, x: Tensor, spelled: str) -> Tensor:
    """The values, float64; of responses in a mini-batch one of each that is not empty."""
    x = x.double()
    return x[scope.source.positions == 0] if spelled == "responses" and scope.per_token else x


def _all_mean(scope: Scope, x: Tensor, spelled: str) -> Tensor:
    """The mean over all ranks, a number. Of nothing 1: a mini-batch whose responses are all filtered has a loss of 0,
    also where something is over its mean."""
    x = _one_each(scope, x, spelled)
    total = all_sum(torch.stack([x.sum(), x.new_tensor(float(x.shape[0]))]), scope.comm)
    top, bottom = largest(x, scope.comm), -largest(-x, scope.comm)
    mean = torch.where(total[1] > 0, total[0] / total[1].clamp(min=1), 1.0)
    return torch.where(top == bottom, top, mean)


def _all_std(scope: Scope, x: Tensor, spelled: str) -> Tensor:
    mean, x = _all_mean(scope, x, spelled), _one_each(scope, x, spelled)
    number = all_sum(x.new_tensor(float(x.shape[0])), scope.comm)
    spread = all_sum(((x - mean) ** 2).sum(), scope.comm)
    return (spread / (number - 1).clamp(min=1)).sqrt()


def _of_group_b(how: str) -> Callable[[Scope, Tensor], Tensor]:
    """Over a group's responses that are in the mini-batch and not empty."""

    def run(scope: Scope, x: Tensor) -> Tensor:
        ids, first = scope.source.group_ids[scope.source.sequence], scope.source.positions == 0  # one per response
        unique_ids, index = torch.unique(gather(ids[first], scope.comm), return_inverse=True)
        group_values = reduced(gather(x.double()[first], scope.comm), index, unique_ids.shape[0], how)
        return group_values[torch.searchsorted(unique_ids, ids)].to(x.dtype)

    return run


def _cov_b(scope: Scope, x: Tensor, y: Tensor) -> Tensor:
    """Cui et al. 2505.22617 Eq. 10."""
    values = torch.stack([x.detach().double(), y.double()])
    totals = all_sum(torch.cat([values.sum(1), values.new_tensor([float(values.shape[1])])]), scope.comm)
    centred = values - (totals[:2] / totals[2].clamp(min=1))[:, None]
    return centred[0] * centred[1]


def draws(batch: TokenBatch, salt: int) -> Tensor:
    """One uniform number per token, float64 [N]:
    a function of (salt, sequence's uid, position) alone, whatever the order, split or rank."""
    assert batch.uid is not None
    keys = mix(batch.uid, torch.tensor(salt, dtype=torch.int64, device=batch.uid.device))
    return uniform(keys[batch.sequence], batch.positions)


def _order(batch: TokenBatch, comm: Collectives | None) -> Tensor:
    """Place of each token by its sequence's uid and then by its position, over all ranks, [N]: ascending, with gaps."""
    assert batch.uid is not None
    number = torch.searchsorted(gather(batch.uid, comm).unique(), batch.uid)
    return (number[batch.sequence] * 2**32 + batch.positions).double()


def top_tokens(scores: Tensor, ties: Tensor, count: int, comm: Collectives | None) -> Tensor:
    """Mask of the `count` largest scores over all ranks, bool [N]; among equal scores the smallest ties win. A score of
    -inf is never chosen. scores: float64 [N]; ties: no two alike [N]."""
    order = _best_first(scores, ties)[:count]
    all_scores, all_ties = gather(scores[order], comm), gather(ties[order], comm)
    if not all_scores.shape[0]:
        return torch.zeros_like(scores, dtype=torch.bool)
    last = _best_first(all_scores, all_ties)[:count][-1]
    chosen = (scores > all_scores[last]) | ((scores == all_scores[last]) & (ties <= all_ties[last]))
    return chosen & (scores > -torch.inf)


def _best_first(scores: Tensor, ties: Tensor) -> Tensor:
    order = torch.argsort(ties, stable=True)
    return order[torch.argsort(scores[order], descending=True, stable=True)]


def tail_tokens(values: Tensor, among: Tensor, bound: float, ties: Tensor, comm: Collectives | None) -> Tensor:
    """Mask of the fewest of the largest values, `among` those over all ranks, without which their mean is at most the
    bound, bool [N]; among equal values the largest ties leave first, and a NaN never. values: float64 [N]; ties: no two
    alike [N]."""
    all_values, all_ties = gather(values[among], comm), gather(ties[among], comm)
    order = torch.argsort(all_ties)
    order = order[torch.argsort(all_values[order], stable=True)]
    means = all_values[order].cumsum(0) / torch.arange(1, order.shape[0] + 1, device=order.device)
    low = (means <= bound).nonzero()
    if not low.shape[0]:
        return among & ~values.isnan()
    last = order[low[-1, 0]]
    beyond = (values > all_values[last]) | ((values == all_values[last]) & (ties > all_ties[last]))
    return among & beyond


def _tail_b(scope: Scope, x: Tensor, among: Tensor, bound: float) -> Tensor:
    return tail_tokens(x.double(), among.expand(x.shape), bound, _order(scope.source, scope.comm), scope.comm)


def _chosen(scope: Scope, scores: Tensor, share: float, ties: Tensor) -> Tensor:
    count = int(all_sum(scope.lengths.sum().double(), scope.comm))
    return top_tokens(scores.double(), ties, max(1, int(share * count)), scope.comm)


def _draw_b(scope: Scope, condition: Tensor, share: float) -> Tensor:
    number = draws(scope.source, scope.salt)
    return _chosen(scope, torch.where(condition, -number, -torch.inf), share, number)


RUN: dict[str, Callable[..., Value]] = {
    "exp": lambda s, x: x.clamp(max=TOP).exp(),
    "expm1": lambda s, x: x.clamp(max=TOP).expm1(),
    "log": lambda s, x: x.log(),
    "sqrt": lambda s, x: x.sqrt(),
    "abs": lambda s, x: x.abs(),
    "sigmoid": lambda s, x: x.sigmoid(),
    "tanh": lambda s, x: x.tanh(),
    "k2": lambda s, x: 0.5 * x * x,
    "k3": lambda s, x: k3(x),
    "min": _extreme(low=True),
    "max": _extreme(low=False),
    "clip": _clip,
    "comb": lambda s, n, k: comb(n, k),
    "sg": lambda s, x: x.detach() if isinstance(x, Tensor) else x,
    "tokens": _tokens,
    "responses": lambda s, x: x,
    "mean_i": _mean_i,
    "sum_i": _sum_i,
    "max_i": _max_i,
    "prefix_mean_i": _prefix_mean_i,
    "mean_g": group_mean,
    "std_g": group_std,
    "sum_g": _sum_g,
    "max_others_g": _max_others_g,
    "share_g": lambda s, x, member: _share(x, member, *s.groups(x)),
    "share_t": lambda s, x, member: _share(x, member, *s.columns()),
    "sum_k": lambda s, x: x.sum(1),
    "mean_r": _all_mean,
    "std_r": _all_std,
    "mean_b": _all_mean,
    "std_b": _all_std,
    "max_b": lambda s, x, spelled: largest(x.double(), s.comm),
    "sum_gb": _of_group_b("sum"),
    "max_gb": _of_group_b("amax"),
    "cov_b": _cov_b,
    "top_b": lambda s, x, share: _chosen(s, x, share, draws(s.source, s.salt)),
    "first_b": lambda s, x, share: _chosen(s, x, share, _order(s.source, s.comm)),
    "draw_b": _draw_b,
    "tail_b": _tail_b,
}
_CONDITIONS = ("share_g", "share_t", "draw_b", "tail_b")  # take a condition as it is
_OF_TOKENS = ("share_t", "cov_b", "top_b", "first_b", "draw_b", "tail_b")  # whatever their arguments are of


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
                return torch.where(mask, scope.number(value, node.per), 0.0)
    if op == "where":
        return torch.where(values[0], *(scope.number(value, node.per) for value in values[1:]))
    if op not in _CONDITIONS:
        values = [scope.typed(value, part.per) for value, part in zip(values, node.args, strict=True)]
    if op == "/":
        above, below = (scope.number(value, node.per) for value in values)
        if node.gradient:
            return above / below
        return torch.where((above == 0) & (below == 0), 0.0, above / below)  # 0/0 is 0 where no gradient flows
    if op in OPERATORS:
        return OPERATORS[op](*values)
    spelled = [node.args[0].spelled] if function is not None and function.takes == ("all",) else []
    return RUN[op](scope, *values, *spelled)


def _own(node: Node, scope: Scope, values: list[Value]) -> Tensor:
    """The value of a function of a user's own."""
    assert node.function is not None
    arguments: list[Value] = []
    for word, part, value in zip(node.function.takes, node.args, values, strict=False):
        per = {"any": node.per, "condition": "token"}.get(word, part.per)
        lifted = scope.lift(value, part.per, per)
        if word == "condition" and not part.per:  # a condition of L, N or B
            lifted = lifted.repeat(scope.source.tokens)
        arguments.append(lifted if word in ("condition", "number", "number?") else scope.number(lifted, per))
    return own_functions.run(node.function, node.op, own_functions.Layout(scope, node.stage), arguments)
