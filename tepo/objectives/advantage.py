"""Advantage axis: from graded groups to one number per token, once per rollout, always detached."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tepo.objectives.batch import Comm, Groups
from tepo.objectives.options import option

EPS_SOURCE = "verl compute_grpo_outcome_advantage (papers print none)"


@dataclass(frozen=True)
class GroupNormalized:
    """A_i = (R_i - mean) / (std + eps) in the group; std with ddof 1. DeepSeekMath 2402.03300, TEPO Eq. 9."""

    std: bool = option(True, "divide by the group's standard deviation", source="DeepSeekMath; off: Dr.GRPO 2503.20783")
    eps: float = option(1e-6, "added to the standard deviation", source=EPS_SOURCE, low=0)


KINDS = {"group_normalized": GroupNormalized}


@dataclass(frozen=True)
class GroupStatistics:
    """Per sequence of the rollout: its group's index, size, mean and standard deviation (ddof 1), and whether its values differ."""

    index: Tensor  # int64 [S]
    size: Tensor  # [S]
    mean: Tensor  # [S]
    std: Tensor  # [S]
    mixed: Tensor  # bool [S]


def group_statistics(values: Tensor, group_ids: Tensor) -> GroupStatistics:
    """Statistics of values [S] over the groups, in float64. A group of one, or of equal values, has std 0 and is not mixed."""
    groups, index = torch.unique(group_ids, return_inverse=True)
    values = values.double()
    zeros = values.new_zeros(groups.shape[0])
    size = zeros.index_add(0, index, torch.ones_like(values))
    mean = zeros.index_add(0, index, values) / size
    spread = zeros.index_add(0, index, (values - mean[index]) ** 2)
    std = (spread / (size - 1).clamp(min=1)).sqrt()
    top = torch.full_like(zeros, -torch.inf).scatter_reduce(0, index, values, "amax")
    bottom = torch.full_like(zeros, torch.inf).scatter_reduce(0, index, values, "amin")
    return GroupStatistics(index, size[index], mean[index], std[index], (top > bottom)[index])


def normalized(values: Tensor, group_ids: Tensor, std: bool, eps: float) -> Tensor:
    """(x - mean) / (std + eps) in each group, float64 [S]; exactly 0 where all values of the group are equal."""
    group = group_statistics(values, group_ids)
    centred = torch.where(group.mixed, values.double() - group.mean, 0.0)
    return centred / (group.std + eps) if std else centred


def advantages(options: GroupNormalized, groups: Groups, comm: Comm | None = None) -> Tensor:
    """Per-token advantages [N] in the dtype of the rewards."""
    rewards = groups.rewards
    per_sequence = normalized(rewards, groups.group_ids, options.std, options.eps)
    return per_sequence.to(rewards.dtype)[groups.rows]
