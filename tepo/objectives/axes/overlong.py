"""Overlong axis: what becomes of responses near or at the length limit. DAPO 2503.14476 section 3.4."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tepo.common.schema import option
from tepo.objectives.axis import Kind, Needs, Part, meaning
from tepo.objectives.batch import Groups, TokenBatch
from tepo.objectives.inputs import LIMIT, missing


class Overlong(Kind, Protocol):
    """Treatment of responses that reach the length limit: of their rewards, and of their part in the loss."""

    def shaped_rewards(self, groups: Groups) -> Tensor:
        """Rewards with any punishment, float64 [S]."""

    def kept_sequences(self, batch: TokenBatch) -> Tensor | None:
        """Indices of the sequences that stay in the loss, int64 [K]; None: all of them, always."""


@dataclass(frozen=True)
class Keep:
    """Nothing: a truncated response is graded and trained on like any other."""

    needs = Needs()
    explained = Part()

    def shaped_rewards(self, groups: Groups) -> Tensor:
        return groups.rewards.double()

    def kept_sequences(self, batch: TokenBatch) -> None:
        return None


@dataclass(frozen=True)
class Punish:
    """Soft overlong punishment: the reward falls linearly to -factor over the last part of the allowed length. DAPO Eq.
    13."""

    buffer: float = option(
        0.2, "that last part, as a share of the limit", source="DAPO 4.1: 4,096 of 20,480 tokens", low=1e-6, high=1
    )
    factor: float = option(1.0, "the largest deduction", source="DAPO Eq. 13", low=0)
    needs = Needs(max_new_tokens=True)

    def shaped_rewards(self, groups: Groups) -> Tensor:
        return groups.rewards.double() - self.factor * deduction(groups, self.buffer)

    def kept_sequences(self, batch: TokenBatch) -> None:
        return None

    @property
    def explained(self) -> Part:
        return meaning(
            f"R_i loses up to {self.factor:g}, linearly over the last {self.buffer:.0%} of the length limit",
            rf"R_i \leftarrow R_i - {self.factor:g}\,"
            rf"\mathrm{{clip}}\Big(\frac{{T_i - {1 - self.buffer:g} L}}{{{self.buffer:g} L}}, 0, 1\Big)",
        )


@dataclass(frozen=True)
class Filter:
    """Overlong filtering: truncated responses leave the loss and its denominators
    (their rewards still count in the group's baseline)."""

    needs = Needs(finished=True)
    explained = meaning("truncated responses leave the sums, N and B", r"\text{truncated responses leave the sums}")

    def shaped_rewards(self, groups: Groups) -> Tensor:
        return groups.rewards.double()

    def kept_sequences(self, batch: TokenBatch) -> Tensor:
        return torch.nonzero(batch.want("finished", "overlong.kind: filter"))[:, 0]


KINDS: dict[str, type[Overlong]] = {"keep": Keep, "punish": Punish, "filter": Filter}


def length_limit(holder: Groups | TokenBatch, why: str) -> int:
    """The length limit, or the error that says who needs it."""
    if holder.max_new_tokens is None:
        raise missing(holder, LIMIT, why)
    return holder.max_new_tokens


def deduction(groups: Groups, buffer: float) -> Tensor:
    """Depth of each response in the last `buffer` share of the limit, from 0 to 1: float64 [S]."""
    limit = length_limit(groups, "a length penalty")
    return ((groups.lengths.double() - limit * (1 - buffer)) / (limit * buffer)).clamp(0, 1)
