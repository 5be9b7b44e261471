"""Rewards shaped by the old policy's entropy: GTPO (per token) and GRPO-S (per response), Tan & Pan 2508.04349.

Successes are responses with a positive reward before any length punishment. Their reward is raised by their share of
the entropy among the group's successes; version 2 also lowers the failures, the surest most."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.common.schema import option
from tepo.objectives.axes.group_advantage import as_graded
from tepo.objectives.axes.moments import Moments, batch_moments, group_moments
from tepo.objectives.axes.overlong import deduction, length_limit
from tepo.objectives.axis import EPS_SOURCE, Needs, Part, meaning
from tepo.objectives.batch import Comm, Groups
from tepo.objectives.inputs import missing
from tepo.objectives.segments import segment_sum

SMALLEST = 1e-300  # an entropy of 0 in 1/H: such a token then takes all of the share, several of them alike
GEOMETRIC_FLOOR = 1e-8  # entropies in a geometric mean: one sure token would make it 0


@dataclass(frozen=True)
class Gtpo:
    """r + alpha d_t H_t / sum H_t on tokens of successes (Eq. 2), normalised over tokens (Eq. 3)."""

    alpha: float = option(
        0.1, "weight of the entropy's share", source="alpha2 of v6; the paper's versions 1 and 2 give none", low=0
    )
    failures: str = option(
        "zero",
        "zero: reward 0 (version 1); inverse_entropy: -h_t (1/H) / sum 1/H, normalised apart (version 2, Eq. 13-15)",
        source="Eq. 2",
        choices=("zero", "inverse_entropy"),
    )
    counted: str = option(
        "successful",
        "the responses that d_t counts",
        source="only so does 3.5.1's sum rule hold",
        choices=("successful", "all"),
    )
    statistics: str = option(
        "group",
        "tokens whose mean and deviation normalise: of the prompt's group or of the whole rollout",
        source="Eq. 14, Conclusion 2",
        choices=("group", "batch"),
    )
    entropy_floor: float = option(
        0.0,
        "entropies below count as this much; 1/H of a sure token otherwise takes almost all of h_t",
        source="none in the paper",
        low=0,
    )
    eps: float = option(1e-6, "added to the standard deviation", source=EPS_SOURCE, low=0)
    needs = Needs(old_entropies=True)
    varies = True
    current = as_graded

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        graded, sequence = _graded(rewards, groups, self.entropy_floor), groups.sequence
        member, keys = graded.success[sequence], _columns(groups)
        counted = member if self.counted == "successful" else torch.ones_like(member)
        reward = graded.base[sequence] + self.alpha * shares(graded.entropies, member, keys, counted)
        positive = _token_moments(self.statistics, reward, groups, comm).normalize(reward, self.eps)
        if self.failures == "zero":
            return positive
        below = shares(inverse(graded.entropies), ~member, keys, ~member)
        lowered = 0 * graded.base[sequence] - below  # 0, or NaN where a reward is
        negative = _token_moments(self.statistics, lowered, groups, comm).normalize(lowered, self.eps)
        return torch.where(member, positive, negative)

    @property
    def explained(self) -> Part:
        text = (
            f"A = normalised r~, r~ = r_i + {self.alpha:g} d_t H_t / sum_k H_k,t over the group's successes; "
            "0 on failures"
        )
        latex = (
            rf"\tilde r_{{i,t}} = r_i + {self.alpha:g}\, d_t \frac{{H_{{i,t}}}}{{\sum_k H_{{k,t}}}}\ (r_i = 1),"
            r"\quad A_{i,t} = \mathrm{normalise}(\tilde r)_{i,t}"
        )
        if self.failures != "zero":
            text += "; failures: A = normalised r-, r- = -h_t (1/H_t) / sum_k 1/H_k,t"
            latex += r",\quad r^-_{i,t} = -h_t \frac{1/H_{i,t}}{\sum_k 1/H_{k,t}}\ (r_i = 0)"
        return meaning(text, latex, "old entropies")


@dataclass(frozen=True)
class GtpoClipped:
    """clip(alpha1 + alpha2 d_t H_t / sum H_t, 1, alpha1 + alpha1/kappa) plus a length penalty,
    on successes (4.5.1, Eq. 11-12)."""

    alpha1: float = option(
        0.9, "base reward; alpha1 + alpha2 = 1", source="the paper gives none; alpha2 as gtpo's alpha", low=0, high=1
    )
    alpha2: float = option(
        0.1, "weight of the entropy's share", source="the paper gives none; as gtpo's alpha", low=0, high=1
    )
    kappa: float = option(
        2.0,
        "upper bound alpha1 (1 + 1/kappa); at most alpha1/alpha2, else the interval is empty",
        source="the paper only says kappa > 1",
        low=1,
    )
    length_buffer: float = option(
        0.2, "L1, as a share of the limit L2", source="DAPO 4.1: 4,096 of 20,480 tokens", low=1e-6, high=1
    )
    length_term: str = option(
        "continuous",
        "divide by L1, reaching -1 at the limit, or by L2 as_printed",
        source="DAPO Eq. 13, which it follows",
        choices=("continuous", "as_printed"),
    )
    statistics: str = option(
        "group", "tokens whose mean and deviation normalise", source="Eq. 14, Conclusion 2", choices=("group", "batch")
    )
    eps: float = option(1e-6, "added to the standard deviation", source=EPS_SOURCE, low=0)
    needs = Needs(old_entropies=True, max_new_tokens=True)
    varies = True
    current = as_graded

    def __post_init__(self) -> None:
        if abs(self.alpha1 + self.alpha2 - 1) > 1e-9:
            what = f"advantage.alpha1 + advantage.alpha2 must be 1, not {self.alpha1 + self.alpha2:g}"
            raise UserError(what, where="gtpo_clipped (GTPO 4.5.1)")
        if self._top < 1:
            what, fix = f"advantage.kappa {self.kappa:g} leaves no room above 1", "at most alpha1/alpha2 = "
            raise UserError(what, where="gtpo_clipped (GTPO 4.5.1)", fix=f"{fix}{self.alpha1 / self.alpha2:g}")

    @property
    def _top(self) -> float:
        return self.alpha1 * (1 + 1 / self.kappa)

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        graded, sequence = _graded(rewards, groups), groups.sequence
        member = graded.success[sequence]
        share = shares(graded.entropies, member, _columns(groups), member)
        shaped = (self.alpha1 + self.alpha2 * share).clamp(1.0, self._top)
        extra = graded.base - graded.success.double() + self.length_term_of(groups)
        reward = torch.where(member, shaped + extra[sequence], graded.base[sequence])
        return _token_moments(self.statistics, reward, groups, comm).normalize(reward, self.eps)

    def length_term_of(self, groups: Groups) -> Tensor:
        """R(i) of 4.5.1, float64 [S]: 0 up to L = L2 - L1, then falling, -1 beyond L2."""
        inside = deduction(groups, self.length_buffer)
        if self.length_term == "as_printed":
            limit = length_limit(groups, "gtpo_clipped")
            inside = torch.where(groups.lengths > limit, 1.0, inside * self.length_buffer)
        return -inside

    @property
    def explained(self) -> Part:
        alpha1, alpha2, top = self.alpha1, self.alpha2, self._top
        return meaning(
            f"A = normalised r~, r~ = clip({alpha1:g} + {alpha2:g} d_t H_t / sum_k H_k,t, 1, {top:g}) + R_len(i) "
            "on successes; 0 on failures",
            rf"\tilde r_{{i,t}} = \mathrm{{clip}}\Big({alpha1:g} + {alpha2:g}\, d_t "
            rf"\frac{{H_{{i,t}}}}{{\sum_k H_{{k,t}}}}, 1, {top:g}\Big) + R_{{\mathrm{{len}}}}(i)\ (r_i = 1),"
            r"\quad A_{i,t} = \mathrm{normalise}(\tilde r)_{i,t}",
            "old entropies",
        )


@dataclass(frozen=True)
class GrpoS:
    """r + beta n H_i / sum H on successes (Eq. 5), H_i the response's mean entropy,
    normalised over the group's responses (Eq. 8)."""

    beta: float = option(
        0.1, "weight of the entropy's share", source="beta2 of v6; the paper's versions 1 and 2 give none", low=0
    )
    failures: str = option(
        "zero",
        "zero: reward 0 (version 1); inverse_entropy: -m (1/H) / sum 1/H, normalised apart (version 2, Eq. 17-19)",
        source="Eq. 5",
        choices=("zero", "inverse_entropy"),
    )
    entropy_mean: str = option(
        "arithmetic", "mean of the token entropies", source="3.4.1", choices=("arithmetic", "geometric")
    )
    entropy_floor: float = option(0.0, "entropies below count as this much", source="none in the paper", low=0)
    eps: float = option(1e-6, "added to the standard deviation", source=EPS_SOURCE, low=0)
    needs = Needs(old_entropies=True)
    varies = False
    current = as_graded

    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor:
        graded, ids = _graded(rewards, groups, self.entropy_floor), groups.group_ids
        success, lengths = graded.success, groups.lengths.clamp(min=1)
        if self.entropy_mean == "arithmetic":  # H_i of each response, float64 [S]
            mean = segment_sum(graded.entropies, groups.lengths) / lengths
        else:
            logs = graded.entropies.clamp(min=GEOMETRIC_FLOOR).log()
            mean = (segment_sum(logs, groups.lengths) / lengths).exp()
        reward = graded.base + self.beta * shares(mean, success, ids, success)
        advantage = group_moments(reward, ids).normalize(reward, self.eps)
        if self.failures == "inverse_entropy":
            lowered = 0 * graded.base - shares(inverse(mean), ~success, ids, ~success)  # 0, or NaN where a reward is
            negative = group_moments(lowered, ids).normalize(lowered, self.eps)
            advantage = torch.where(success, advantage, negative)
        return advantage[groups.sequence]

    @property
    def explained(self) -> Part:
        text = (
            f"A = normalised r^, r^ = r_i + {self.beta:g} n H_i / sum_k H_k over the group's successes "
            f"(H_i: {self.entropy_mean} mean of the token entropies); 0 on failures"
        )
        latex = (
            rf"\hat r_i = r_i + {self.beta:g}\, n \frac{{\hat H_i}}{{\sum_k \hat H_k}}\ (r_i = 1),"
            r"\quad A_{i,t} = \mathrm{normalise}(\hat r)_i"
        )
        if self.failures != "zero":
            text += "; failures: A = normalised r-, r- = -m (1/H_i) / sum_k 1/H_k"
            latex += r",\quad r^-_i = -m \frac{1/\hat H_i}{\sum_k 1/\hat H_k}\ (r_i = 0)"
        return meaning(text, latex, "old entropies")


class _Graded(NamedTuple):
    """Per response, float64 [S] and bool [S]: r in {0, 1} plus any length punishment, and whether it is a success;
    per token, float64 [N]: the old policy's entropies."""

    base: Tensor
    success: Tensor
    entropies: Tensor


def _graded(rewards: Tensor, groups: Groups, floor: float = 0.0) -> _Graded:
    """rewards: float64 [S] after any length punishment; floor: entropies below count as this much."""
    if groups.old_entropies is None:
        raise missing(groups, "old_entropies", "advantage (gtpo, gtpo_clipped, grpo_s)")
    success = groups.rewards > 0
    base = rewards - groups.rewards.double() + success.double()
    return _Graded(base, success, groups.old_entropies.double().clamp(min=floor))


def shares(weights: Tensor, member: Tensor, keys: Tensor, counted: Tensor) -> Tensor:
    """count * weight / sum of weights, among the members [K] (bool) with the same key [K]; 0 elsewhere. counted: bool
    [K]. Where all of these weights are 0, members have equal shares: the sum rule of 3.5.1 holds, and a lone success
    has the whole share whatever its entropy."""
    columns, index = torch.unique(keys, return_inverse=True)
    zeros = weights.new_zeros(columns.shape[0])

    def sums(values: Tensor) -> Tensor:
        return zeros.index_add(0, index, values.to(weights.dtype))[index]

    mine = torch.where(member, weights, 0.0)
    mine = torch.where(sums(mine) == 0, member.to(weights.dtype), mine)
    total = sums(mine)
    return mine / torch.where(total == 0, 1.0, total) * sums(counted)


def inverse(entropies: Tensor) -> Tensor:
    """1/H, finite at 0."""
    return 1 / entropies.clamp(min=SMALLEST)


def _columns(groups: Groups) -> Tensor:
    """One key per (group, position): int64 [N]."""
    _, index = torch.unique(groups.group_ids, return_inverse=True)
    width = groups.lengths.max().clamp(min=1) if groups.lengths.shape[0] else 1
    return index[groups.sequence] * width + groups.positions


def _token_moments(statistics: str, values: Tensor, groups: Groups, comm: Comm | None) -> Moments:
    if statistics == "batch":
        return batch_moments(values, comm)
    return group_moments(values, groups.group_ids[groups.sequence])
