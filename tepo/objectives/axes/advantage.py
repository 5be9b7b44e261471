"""Advantage axis: from graded groups to one number per token, once per rollout, always detached.

Statistics are over whole groups; those over the batch (`gpg`, `batch_whitened`, `batch_scaled`, `decoupled`,
`statistics: batch`) are over the rollout and all ranks."""

from typing import Protocol

from torch import Tensor

from tepo.objectives.axes.entropy_reward import GrpoS, Gtpo, GtpoClipped
from tepo.objectives.axes.group_advantage import BatchWhitened, EntropyTerm, Gpg, GroupNormalized, LeaveOneOut
from tepo.objectives.axes.scaled_advantage import (
    BatchScaled,
    BestOfGroup,
    Decoupled,
    LengthWeighted,
    MeanNormalized,
    PassAtK,
)
from tepo.objectives.axis import Kind
from tepo.objectives.batch import Comm, Groups, TokenBatch


class Advantage(Kind, Protocol):
    """Kind of the axis that turns a rollout's rewards into one advantage a token. varies: whether the advantages of a
    response's tokens differ. A kind that takes no baseline off (responses alike in all get an advantage other than 0)
    declares it by `baseline = False`, for `tepo check-objective`."""

    @property
    def varies(self) -> bool: ...

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        """Advantage of each token [N]. rewards: float64 [S], after any length punishment. A group of one response, or
        of equal rewards, gets exactly 0; one with a NaN reward gets NaN."""

    def current(self, advantages: Tensor, batch: TokenBatch) -> Tensor:
        """The advantages [N] with what the current policy adds to them at each update, detached."""


KINDS: dict[str, type[Advantage]] = {
    "group_normalized": GroupNormalized,
    "entropy_term": EntropyTerm,
    "gpg": Gpg,
    "leave_one_out": LeaveOneOut,
    "batch_whitened": BatchWhitened,
    "gtpo": Gtpo,
    "gtpo_clipped": GtpoClipped,
    "grpo_s": GrpoS,
    "mean_normalized": MeanNormalized,
    "length_weighted": LengthWeighted,
    "pass_at_k": PassAtK,
    "best_of_group": BestOfGroup,
    "batch_scaled": BatchScaled,
    "decoupled": Decoupled,
}
