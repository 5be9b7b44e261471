"""Advantages from rewards alone: a response's reward less its group's baseline, and what methods add to that."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tepo.common.schema import option
from tepo.objectives.axes.moments import batch_moments, group_moments
from tepo.objectives.axis import EPS_SOURCE, Line, Needs, Part, meaning
from tepo.objectives.batch import Comm, Groups, TokenBatch, all_sum

NORMALIZED = Line(
    "(R_i - mean) / (std + eps) over the group", r"\frac{R_i - \mathrm{mean}(R)}{\mathrm{std}(R) + \epsilon}"
)


def as_graded(kind: object, advantages: Tensor, batch: TokenBatch) -> Tensor:
    """`Advantage.current` of the kinds to which the current policy adds nothing."""
    return advantages


class OfResponses:
    """Members of an advantage that is one number a response and to which the current policy adds nothing."""

    needs = Needs()
    varies = False
    current = as_graded


@dataclass(frozen=True)
class GroupNormalized(OfResponses):
    """A_i = (R_i - mean) / (std + eps) over the group, the same for all tokens of the response. DeepSeekMath
    2402.03300, TEPO Eq. 9."""

    std: bool = option(
        True,
        "divide by the group's standard deviation (ddof 1)",
        source="DeepSeekMath 4.1.2; off in Dr.GRPO 2503.20783",
    )
    eps: float = option(1e-6, "added to the standard deviation", source=EPS_SOURCE, low=0, when=lambda kind: kind.std)

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        return group_moments(rewards, groups.group_ids).normalize(rewards, self.eps, self.std)[groups.sequence]

    @property
    def explained(self) -> Part:
        value = NORMALIZED if self.std else Line("R_i - mean over the group", r"R_i - \mathrm{mean}(R)")
        return meaning(f"A = {value.text}", f"A_{{i,t}} = {value.latex}")


@dataclass(frozen=True)
class EntropyTerm:
    """Group-normalised A, plus min(alpha H, |A|/kappa) with the current entropy H, detached. Cheng et al.
    2506.14758."""

    alpha: float = option(0.4, "weight of the entropy", source="Cheng et al. (GRPO); TEPO 4.1 prints 4e-4", low=0)
    kappa: float = option(
        2.0, "keeps the term below |A|/kappa, so that no sign flips", source="Cheng et al.; TEPO 4.1", low=1
    )
    std: bool = option(True, "divide by the group's standard deviation (ddof 1)", source="DeepSeekMath 4.1.2")
    eps: float = option(1e-6, "added to the standard deviation", source=EPS_SOURCE, low=0, when=lambda kind: kind.std)
    needs = Needs(entropies=True)
    varies = True

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        return group_moments(rewards, groups.group_ids).normalize(rewards, self.eps, self.std)[groups.sequence]

    def current(self, advantages: Tensor, batch: TokenBatch) -> Tensor:
        entropies = batch.want("entropies", "advantage.kind: entropy_term").detach()
        return advantages + torch.minimum(self.alpha * entropies, advantages.abs() / self.kappa)

    @property
    def explained(self) -> Part:
        return meaning(
            f"A = a + min({self.alpha:g} sg[H_t], |a|/{self.kappa:g}), a = {NORMALIZED.text}",
            rf"A_{{i,t}} = a_i + \min\big({self.alpha:g}\,\mathrm{{sg}}[H_{{i,t}}],\ |a_i|/{self.kappa:g}\big),"
            rf"\quad a_i = {NORMALIZED.latex}",
            "H_t in the advantage",
        )


@dataclass(frozen=True)
class Gpg(OfResponses):
    """alpha (R_i - mean) over the group. GPG 2504.02546 Eq. 5-7."""

    alpha: str = option(
        "valid_groups",
        "valid_groups: responses / responses in groups with mixed rewards; "
        "nonzero_rewards: responses / responses with a reward (verl); none: 1",
        source="GPG Eq. 7",
        choices=("valid_groups", "nonzero_rewards", "none"),
    )
    std: bool = option(False, "divide by the group's standard deviation (ddof 1)", source="GPG: F_norm = 1")
    eps: float = option(1e-6, "added to the standard deviation", source=EPS_SOURCE, low=0, when=lambda kind: kind.std)

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        centred = group_moments(rewards, groups.group_ids).normalize(rewards, self.eps, self.std)
        if self.alpha == "none":
            return centred[groups.sequence]
        # alpha is judged on correctness, before any length punishment; 1 where no response counts (all are 0 then)
        mixed = self.alpha == "valid_groups"
        counted = group_moments(groups.rewards, groups.group_ids).mixed if mixed else groups.rewards != 0
        totals = all_sum(torch.stack([counted.new_ones(counted.shape[0]).sum(), counted.sum()]).double(), comm)
        return (torch.where(totals[1] > 0, totals[0] / totals[1].clamp(min=1), 1.0) * centred)[groups.sequence]

    @property
    def explained(self) -> Part:
        over = Line(" / (std + eps)", r" / (\mathrm{std}(R) + \epsilon)") if self.std else Line("", "")
        return meaning(
            f"A = alpha (R_i - mean){over.text} over the group",
            rf"A_{{i,t}} = \alpha\,\big(R_i - \mathrm{{mean}}(R)\big){over.latex}",
        )


@dataclass(frozen=True)
class LeaveOneOut(OfResponses):
    """R_i minus the mean of the others in the group. RLOO 2402.14740."""

    explained = meaning("A = R_i - mean of the others in the group", r"A_{i,t} = R_i - \tfrac{1}{G-1}\sum_{k\ne i} R_k")

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        moments = group_moments(rewards, groups.group_ids)
        centred = moments.normalize(rewards, 0.0, std=False)
        return (centred * moments.size / (moments.size - 1).clamp(min=1))[groups.sequence]


@dataclass(frozen=True)
class BatchWhitened(OfResponses):
    """R_i minus the group's mean, then whitened over all tokens of the rollout. REINFORCE++ baseline 2501.03262."""

    eps: float = option(1e-8, "added to the variance", source="verl masked_whiten", low=0)
    explained = meaning(
        "A = (a - mean) / sqrt(var + eps) over all tokens, a = R_i - mean over the group",
        r"A_{i,t} = \frac{a_i - \mathrm{mean}_{\text{tokens}}(a)}{\sqrt{\mathrm{var}_{\text{tokens}}(a) + \epsilon}},"
        r"\quad a_i = R_i - \mathrm{mean}(R)",
    )

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        centred = group_moments(rewards, groups.group_ids).normalize(rewards, 0.0, std=False)[groups.sequence]
        moments = batch_moments(centred, comm)
        whitened = (centred - moments.mean) * torch.rsqrt(moments.std**2 + self.eps)
        return torch.where(moments.mixed, whitened, 0.0)
