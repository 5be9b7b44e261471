"""Advantages from rewards alone with another baseline or another scale than the group's mean and deviation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tepo.common.schema import option
from tepo.objectives.axes.group_advantage import NORMALIZED, OfResponses
from tepo.objectives.axes.moments import batch_moments, group_moments
from tepo.objectives.axis import EPS_SOURCE, Line, Part, meaning
from tepo.objectives.batch import Comm, Groups


@dataclass(frozen=True)
class MeanNormalized(OfResponses):
    """(R_i - mean) / mean over the group; 0 where the mean is not positive. MaxRL, Tajwar et al. 2602.02710. For
    rewards of at least 0. prime-rl computes the same; SkyRL adds 1e-6 to the mean."""

    explained = meaning(
        "A = (R_i - mean) / mean over the group, 0 where mean <= 0",
        r"A_{i,t} = \frac{R_i - \mathrm{mean}(R)}{\mathrm{mean}(R)}",
    )

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        moments = group_moments(rewards, groups.group_ids)
        scaled = moments.normalize(rewards, 0.0, std=False) / moments.mean
        return torch.where(moments.mean <= 0, 0.0, scaled)[groups.sequence]


@dataclass(frozen=True)
class LengthWeighted(OfResponses):
    """R_i minus the mean of the group's rewards weighted by length. OPO, Hao et al. 2505.23585; verl's `opo`."""

    explained = meaning(
        "A = R_i - sum_k T_k R_k / sum_k T_k over the group", r"A_{i,t} = R_i - \frac{\sum_k T_k R_k}{\sum_k T_k}"
    )

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        moments = group_moments(rewards, groups.group_ids)
        baseline = group_moments(rewards * groups.lengths, groups.group_ids).mean
        lengths = group_moments(groups.lengths.double(), groups.group_ids).mean
        centred = rewards - baseline / lengths
        return torch.where(moments.mixed, centred, 0.0)[groups.sequence]


@dataclass(frozen=True)
class PassAtK(OfResponses):
    """The advantage of a response where the reward is pass@k, of every set of k responses of the group.

    Pass@k Training, Chen et al. 2508.10751 section 2.4: with n responses, m of them failures (reward 0 or less),
    rho = 1 - C(m, k)/C(n, k) and s = sqrt(rho (1 - rho)), a success has (1 - rho)/s, a failure
    (1 - rho - C(m - 1, k - 1)/C(n - 1, k - 1))/s. The group is smaller than k: 0."""

    k: int = option(2, "responses of a set", source="a choice for groups of 8; Chen et al. have 4 of 32", low=1)
    eps: float = option(1e-6, "added to s", source="the authors' code", low=0)

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        moments = group_moments(rewards, groups.group_ids)
        failed = torch.where(rewards.isnan(), rewards, (rewards <= 0).double())
        n, m = moments.size, group_moments(failed, groups.group_ids).mean * moments.size
        none = _share_without(n, m, self.k)  # 1 - rho: sets of k without a success
        others = _share_without(n - 1, m - 1, self.k - 1)
        gain = torch.where(failed == 0, none, none - others)
        spread = (none * (1 - none)).sqrt()
        scaled = torch.where(spread == 0, 0.0, gain / (spread + self.eps))  # every set has a success, or none has
        mixed = group_moments(failed, groups.group_ids).mixed & (n >= self.k)
        return torch.where(mixed, scaled, 0.0)[groups.sequence]

    @property
    def explained(self) -> Part:
        k = self.k
        return meaning(
            f"A = (q - c)/(s + eps) over the group's n responses, m of them failures: q = C(m, {k})/C(n, {k}), "
            f"s = sqrt(q (1 - q)), c = C(m - 1, {k - 1})/C(n - 1, {k - 1}) on a failure, 0 on a success",
            rf"A_{{i,t}} = \frac{{q - c_i}}{{s + \epsilon}},\quad q = \tbinom{{m}}{{{k}}} / \tbinom{{n}}{{{k}}},\quad "
            rf"s = \sqrt{{q (1 - q)}},\quad c_i = \tbinom{{m-1}}{{{k - 1}}} / \tbinom{{n-1}}{{{k - 1}}}\ (R_i \le 0)",
        )


def _share_without(n: Tensor, m: Tensor, k: int) -> Tensor:
    """C(m, k) / C(n, k): how many of the sets of k out of n lie within m of them, float64 [K]; 0 where m < k."""
    share = torch.ones_like(n)
    for taken in range(k):
        share = share * (m - taken).clamp(min=0) / (n - taken).clamp(min=1)
    return share


@dataclass(frozen=True)
class BestOfGroup(OfResponses):
    """R_1 - R_2 for the best response of the group, 0 for the others: pass@k with k the size of the group. Tang et al.
    2503.19595; verl's `grpo_passk`, which divides by the group's deviation. Where two are best, all get 0."""

    std: bool = option(True, "divide by the group's standard deviation (ddof 1)", source="verl; off in the paper")
    eps: float = option(1e-6, "added to the standard deviation", source=EPS_SOURCE, low=0, when=lambda kind: kind.std)

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        moments = group_moments(rewards, groups.group_ids)
        best = _largest_in_group(rewards, groups.group_ids)
        without = torch.where(rewards == best, -torch.inf, rewards)
        second = _largest_in_group(without, groups.group_ids)
        alone = group_moments((rewards == best).double(), groups.group_ids).mean * moments.size == 1
        lead = torch.where((rewards == best) & alone & moments.mixed, best - second, 0.0)
        lead = torch.where(rewards.isnan() | best.isnan(), torch.nan, lead)
        scaled = torch.where(moments.mixed, lead / (moments.std + self.eps), 0.0) if self.std else lead
        return scaled[groups.sequence]

    @property
    def explained(self) -> Part:
        over = Line(" / (std + eps)", r" / (\mathrm{std}(R) + \epsilon)") if self.std else Line("", "")
        return meaning(
            f"A = (largest R - second largest R){over.text} for the best response of the group, 0 for the others",
            rf"A_{{i,t}} = \mathbb{{1}}[R_i = R_{{(1)}}]\,\big(R_{{(1)}} - R_{{(2)}}\big){over.latex}",
        )


def _largest_in_group(values: Tensor, group_ids: Tensor) -> Tensor:
    """The largest value of each value's group, [K]."""
    groups, index = torch.unique(group_ids, return_inverse=True)
    top = values.new_full((groups.shape[0],), -torch.inf).scatter_reduce(0, index, values, "amax")
    return top[index]


@dataclass(frozen=True)
class BatchScaled(OfResponses):
    """(R_i - mean over the group) / (standard deviation of all rewards of the rollout + eps). Lite PPO, Liu et al.
    2508.08221; TRL's `scale_rewards="batch"`, which adds 1e-4."""

    eps: float = option(1e-6, "added to the standard deviation", source=EPS_SOURCE, low=0)
    explained = meaning(
        "A = (R_i - mean over the group) / (std over the rollout + eps)",
        r"A_{i,t} = \frac{R_i - \mathrm{mean}_{\text{group}}(R)}{\mathrm{std}_{\text{rollout}}(R) + \epsilon}",
    )

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        centred = group_moments(rewards, groups.group_ids).normalize(rewards, 0.0, std=False)
        moments = batch_moments(rewards, comm)
        return torch.where(moments.mixed, centred / (moments.std + self.eps), 0.0)[groups.sequence]


@dataclass(frozen=True)
class Decoupled(OfResponses):
    """Each reward normalised over the group by itself, summed, then whitened over the responses of the rollout. GDPO
    2601.05242; TRL's `normalize_then_sum`. The rewards are the graded one, or those of `data.reward` with weights, and
    the length punishment of `overlong: punish`; with a single one only the whitening is added. verl's `gdpo` whitens
    over tokens."""

    eps: float = option(1e-6, "added to the standard deviations", source=EPS_SOURCE, low=0)
    explained = meaning(
        "A = (a - mean) / (std + eps) over the rollout, "
        f"a = sum over rewards (graded, length punishment) of {NORMALIZED.text}",
        r"A_{i,t} = \frac{a_i - \mathrm{mean}(a)}{\mathrm{std}(a) + \epsilon},\quad a_i = \sum_n "
        rf"{NORMALIZED.latex.replace('R', 'R^{(n)}')}",
    )

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        graded = groups.rewards.double()
        parts = [(1.0, graded)]
        if groups.named is not None:
            parts = list(zip(groups.weights, groups.named.double().unbind(1), strict=True))
        parts.append((1.0, rewards - graded))
        total = sum(w * group_moments(part, groups.group_ids).normalize(part, self.eps) for w, part in parts)
        assert isinstance(total, Tensor)
        return batch_moments(total, comm).normalize(total, self.eps)[groups.sequence]
