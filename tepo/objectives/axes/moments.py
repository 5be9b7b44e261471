"""Means and deviations over groups, over all tokens of a batch, and over ranks. Everything in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tepo.objectives.batch import Comm, all_sum, gather


@dataclass(frozen=True)
class Moments:
    """For each value: its group's size, mean and standard deviation (ddof 1), and whether the group's values differ.
    float64 / bool [K]."""

    size: Tensor
    mean: Tensor
    std: Tensor
    mixed: Tensor

    def normalize(self, values: Tensor, eps: float, std: bool = True) -> Tensor:
        """(x - mean) / (std + eps), float64 [K]; exactly 0 in a group of one
        and where all values of the group are equal."""
        centred = values.double() - self.mean
        return torch.where(self.mixed, centred / (self.std + eps) if std else centred, 0.0)  # also with an eps of 0


def group_moments(values: Tensor, group_ids: Tensor) -> Moments:
    """Moments of values [K] within the groups that `group_ids` [K] name; groups are whole on one rank."""
    groups, index = torch.unique(group_ids, return_inverse=True)
    values = values.double()
    zeros = values.new_zeros(groups.shape[0])
    size = zeros.index_add(0, index, torch.ones_like(values))
    mean = zeros.index_add(0, index, values) / size
    spread = zeros.index_add(0, index, (values - mean[index]) ** 2)
    top = torch.full_like(zeros, -torch.inf).scatter_reduce(0, index, values, "amax")
    bottom = torch.full_like(zeros, torch.inf).scatter_reduce(0, index, values, "amin")
    std = (spread / (size - 1).clamp(min=1)).sqrt()
    return Moments(size[index], mean[index], std[index], differ(top, bottom)[index])


def batch_moments(values: Tensor, comm: Comm | None) -> Moments:
    """Moments of values [K] over all of them and all ranks."""
    values = values.double()
    size = all_sum(values.new_tensor(float(values.shape[0])), comm)
    mean = all_sum(values.sum(), comm) / size.clamp(min=1)
    spread = all_sum(((values - mean) ** 2).sum(), comm)
    top, bottom = largest(values, comm), -largest(-values, comm)
    std = (spread / (size - 1).clamp(min=1)).sqrt()
    return Moments(*(part.expand(values.shape[0]) for part in (size, mean, std, differ(top, bottom))))


def differ(top: Tensor, bottom: Tensor) -> Tensor:
    """Tell whether the largest and the smallest of some values differ. NaN does, from itself too: it is not centred
    away."""
    return ~(top == bottom)


def largest(values: Tensor, comm: Comm | None) -> Tensor:
    """The largest of values [K] over all ranks; -inf where there is none."""
    own = values.max() if values.shape[0] else values.new_tensor(-torch.inf)
    return gather(own.reshape(1), comm).max()
