"""Mean, standard deviation, shares and the best other one of sets of values: of the groups of a rollout.

values: [S], [S, K] or [N]; index: the number of each value's set; count: how many sets there are. What is of a set is
given on each of its values."""

import torch
from torch import Tensor


def reduced(values: Tensor, index: Tensor, count: int, how: str = "sum") -> Tensor:
    """The sum, `amax` or `amin` of each set [count]."""
    start = {"sum": 0.0, "amax": -torch.inf, "amin": torch.inf}[how]
    made = values.new_full((count, *values.shape[1:]), start)
    if how == "sum":
        return made.index_add(0, index, values)
    places = index if values.dim() == 1 else index[:, None].expand_as(values)
    return made.scatter_reduce(0, places, values, how)


def group_sum(values: Tensor, index: Tensor, count: int) -> Tensor:
    return reduced(values, index, count)[index]


def group_mean(values: Tensor, index: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """The mean; that of like values is that value exactly, so that their advantage is exactly 0."""
    weights = torch.ones_like(values) if weights is None else weights
    total, weight = (reduced(part, index, count) for part in (weights * values, weights))
    top, bottom = (reduced(values, index, count, how) for how in ("amax", "amin"))
    return torch.where(top == bottom, top, total / torch.where(weight == 0, 1.0, weight))[index]


def group_std(values: Tensor, index: Tensor, count: int) -> Tensor:
    """The standard deviation with n - 1 below; 0 for one alone and for like ones."""
    spread = reduced((values - group_mean(values, index, count)) ** 2, index, count)
    size = reduced(torch.ones_like(values), index, count)
    return (spread / (size - 1).clamp(min=1)).sqrt()[index]


def best_other(values: Tensor, index: Tensor, count: int) -> Tensor:
    """The largest of the others; alone: its own."""
    best = reduced(values, index, count, "amax")[index]
    number = group_sum((values == best).double(), index, count)
    second = reduced(torch.where(values == best, -torch.inf, values), index, count, "amax")[index]
    return torch.where((values < best) | (number > 1), best, torch.where(second == -torch.inf, values, second))


def group_share(values: Tensor, member: Tensor, index: Tensor, count: int) -> Tensor:
    """A value over the mean of the members of its set, 0 on the others; 1 where all of the members' are 0."""
    number = group_sum(member.double(), index, count)
    mine = torch.where(member, values, 0.0)
    mine = torch.where(group_sum(mine, index, count) == 0, member.double(), mine)
    total = group_sum(mine, index, count)
    return mine / torch.where(total == 0, 1.0, total) * number
