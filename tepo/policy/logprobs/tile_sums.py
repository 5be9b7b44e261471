"""Sums that pass between the tiles of one matrix of logits, and the coefficients of its gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RunningSums:
    """Running sums per token [N] over the columns seen, of the logits z."""

    maximum: Tensor  # m
    total: Tensor  # sum exp(z - m)
    weighted: Tensor  # sum exp(z - m) (z - m)
    target: Tensor  # z of the target, 0 until its column comes

    @classmethod
    def empty(cls, hidden: Tensor) -> "RunningSums":
        wide = torch.promote_types(hidden.dtype, torch.float32)
        zeros = [torch.zeros(len(hidden), dtype=wide, device=hidden.device) for _ in range(3)]
        return cls(torch.full_like(zeros[0], -torch.inf), *zeros)

    def part(self, rows: slice) -> "RunningSums":
        """Views of some tokens."""
        return RunningSums(self.maximum[rows], self.total[rows], self.weighted[rows], self.target[rows])

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """log p(target), entropy and log-sum-exp [N]. Differences with the maximum are taken first:
        near-certain tokens keep their digits."""
        spread = self.total.log()
        return (self.target - self.maximum) - spread, spread - self.weighted / self.total, self.maximum + spread


@dataclass(frozen=True, slots=True)
class GradientCoefficients:
    """Per token [N]: d loss / d logits = p (offset + slope log p) + at_target [v = target], log p = z - normaliser."""

    normaliser: Tensor
    offset: Tensor
    slope: Tensor | None  # None where the entropy has no gradient
    at_target: Tensor

    def part(self, rows: slice) -> "GradientCoefficients":
        """Views of some tokens."""
        slope = None if self.slope is None else self.slope[rows]
        return GradientCoefficients(self.normaliser[rows], self.offset[rows], slope, self.at_target[rows])
