"""Advantage axis: from graded groups to one number per token, once per rollout, always detached.

Statistics are over whole groups;
those over the batch (`gpg`, `batch_whitened`, `statistics: batch`) are over the rollout and all ranks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tepo.objectives.batch import Comm, Groups, all_sum
from tepo.objectives.entropy_reward import GrpoS, Gtpo, GtpoClipped, entropy_advantages
from tepo.objectives.moments import batch_moments, group_moments
from tepo.objectives.options import EPS_SOURCE, option
from tepo.objectives.overlong import Overlong, shaped_rewards


@dataclass(frozen=True)
class GroupNormalized:
    """A_i = (R_i - mean) / (std + eps) over the group, the same for all tokens of the response.

    DeepSeekMath 2402.03300, TEPO Eq. 9.
    """

    std: bool = option(
        True,
        "divide by the group's standard deviation (ddof 1)",
        source="DeepSeekMath 4.1.2; off in Dr.GRPO 2503.20783",
    )
    eps: float = option(1e-6, "added to the standard deviation", source=EPS_SOURCE, low=0)


@dataclass(frozen=True)
class EntropyTerm:
    """Group-normalised A, plus min(alpha H, |A|/kappa) with the current entropy H, detached.

    Cheng et al. 2506.14758.
    """

    alpha: float = option(0.4, "weight of the entropy", source="Cheng et al. (GRPO); TEPO 4.1 prints 4e-4", low=0)
    kappa: float = option(
        2.0, "keeps the term below |A|/kappa, so that no sign flips", source="Cheng et al.; TEPO 4.1", low=1
    )
    std: bool = option(True, "divide by the group's standard deviation (ddof 1)", source="DeepSeekMath 4.1.2")
    eps: float = option(1e-6, "added to the standard deviation", source=EPS_SOURCE, low=0)


@dataclass(frozen=True)
class Gpg:
    """alpha (R_i - mean) over the group. GPG 2504.02546 Eq. 5-7."""

    alpha: str = option(
        "valid_groups",
        "valid_groups: responses / responses in groups with mixed rewards; "
        "nonzero_rewards: responses / responses with a reward (verl); none: 1",
        source="GPG Eq. 7",
        choices=("valid_groups", "nonzero_rewards", "none"),
    )
    std: bool = option(False, "divide by the group's standard deviation (ddof 1)", source="GPG: F_norm = 1")
    eps: float = option(1e-6, "added to the standard deviation", source=EPS_SOURCE, low=0)


@dataclass(frozen=True)
class LeaveOneOut:
    """R_i minus the mean of the others in the group. RLOO 2402.14740."""


@dataclass(frozen=True)
class BatchWhitened:
    """R_i minus the group's mean, then whitened over all tokens of the rollout. REINFORCE++ baseline 2501.03262."""

    eps: float = option(1e-8, "added to the variance", source="verl masked_whiten", low=0)


KINDS = {
    "group_normalized": GroupNormalized,
    "entropy_term": EntropyTerm,
    "gpg": Gpg,
    "leave_one_out": LeaveOneOut,
    "batch_whitened": BatchWhitened,
    "gtpo": Gtpo,
    "gtpo_clipped": GtpoClipped,
    "grpo_s": GrpoS,
}
Advantage = GroupNormalized | EntropyTerm | Gpg | LeaveOneOut | BatchWhitened | Gtpo | GtpoClipped | GrpoS


def advantages(options: Advantage, overlong: Overlong, groups: Groups, comm: Comm | None = None) -> Tensor:
    """Advantage of each token [N] in the dtype of the rewards (float32 at least).

    A group of one response, or of equal rewards, gets exactly 0; one with a NaN reward gets NaN."""
    rewards = shaped_rewards(overlong, groups)
    match options:
        case Gtpo() | GtpoClipped() | GrpoS():
            return entropy_advantages(options, rewards, groups, comm).to(groups.rewards.dtype)
        case LeaveOneOut():
            moments = group_moments(rewards, groups.group_ids)
            per_sequence = moments.normalize(rewards, 0.0, std=False) * moments.size / (moments.size - 1).clamp(min=1)
        case BatchWhitened(eps=eps):
            centred = group_moments(rewards, groups.group_ids).normalize(rewards, 0.0, std=False)[groups.rows]
            moments = batch_moments(centred, comm)
            whitened = (centred - moments.mean) * torch.rsqrt(moments.std**2 + eps)
            return torch.where(moments.mixed, whitened, 0.0).to(groups.rewards.dtype)
        case Gpg(std=std, eps=eps):
            per_sequence = gpg_alpha(options.alpha, groups, comm) * group_moments(rewards, groups.group_ids).normalize(
                rewards, eps, std
            )
        case GroupNormalized(std=std, eps=eps) | EntropyTerm(std=std, eps=eps):
            per_sequence = group_moments(rewards, groups.group_ids).normalize(rewards, eps, std)
    return per_sequence.to(groups.rewards.dtype)[groups.rows]


def gpg_alpha(alpha: str, groups: Groups, comm: Comm | None) -> Tensor | float:
    """GPG's scale; 1 where no response counts (the advantages are 0 then).

    Judged on correctness, before any length punishment.
    """
    if alpha == "none":
        return 1.0
    counted = group_moments(groups.rewards, groups.group_ids).mixed if alpha == "valid_groups" else groups.rewards != 0
    totals = all_sum(torch.stack([counted.new_ones(counted.shape[0]).sum(), counted.sum()]).double(), comm)
    return torch.where(totals[1] > 0, totals[0] / totals[1].clamp(min=1), 1.0)


def entropy_term(options: EntropyTerm, values: Tensor, entropies: Tensor) -> Tensor:
    """A + min(alpha H, |A|/kappa): advantages [N] and current entropies [N] -> [N], detached."""
    return values + torch.minimum(options.alpha * entropies.detach(), values.abs() / options.kappa)
