"""Correction axis: weights for the gap between the sampler's log-probs and the trainer's, both of the old policy."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.common.schema import option
from tepo.objectives.axis import GAP, Kind, Line, Needs, Part
from tepo.objectives.batch import Comm, TokenBatch, all_sum
from tepo.objectives.segments import segment_max, segment_sum, starts_of
from tepo.objectives.terms import LOG_RATIO_BOUND, sampler_gap

LEVEL_MEANING = "of the ratio: each token's, or the product over the response"
NORMALIZE = option(
    False,
    "divide the weights by their mean over the mini-batch: over tokens, or over responses",
    source="off in verl (rollout_is_batch_normalize) and in the papers",
)


class Correction(Kind, Protocol):
    """A detached factor on each token's policy term. drops: whether it may be 0."""

    @property
    def drops(self) -> bool: ...

    def weights(self, batch: TokenBatch, comm: Comm | None) -> Tensor | None:
        """Weight of each token [N] of a mini-batch, detached; None: 1 for all."""


@dataclass(frozen=True)
class NoCorrection:
    """The gap is logged, not corrected (TEPO's likely code base does so too)."""

    needs = Needs()
    drops = False
    explained = Part()

    def weights(self, batch: TokenBatch, comm: Comm | None) -> None:
        return None


@dataclass(frozen=True)
class Truncated:
    """pi_old trainer / pi_old sampler, kept between a floor and a cap, on the policy term, after clipping:
    truncated importance sampling (TIS). The floor is slime's, OpenRLHF's and TRL's."""

    level: str = option("token", LEVEL_MEANING, source="like-for-like with token losses", choices=("token", "sequence"))
    cap: float = option(2.0, "largest weight", source="verl rollout_is_threshold", low=1e-6)
    floor: float = option(0.0, "smallest weight", source="0 in slime and in the paper of TIS: none", low=0)
    normalize: bool = NORMALIZE
    needs = Needs(sampler_logprobs=True)
    drops = False

    def __post_init__(self) -> None:
        if self.floor > self.cap:
            what = f"correction.floor {self.floor:g} is above correction.cap {self.cap:g}"
            raise UserError(what, where="truncated", fix="the other way round")

    def weights(self, batch: TokenBatch, comm: Comm | None) -> Tensor:
        weights = _ratio(self.level, batch, "truncated").clamp(self.floor, self.cap)
        return _normalized(weights, self.level, batch, comm) if self.normalize else weights

    @property
    def explained(self) -> Part:
        ratio = _symbol(self.level)
        value = Line(f"min({ratio.text}, {self.cap:g})", rf"\min\Big({ratio.latex}, {self.cap:g}\Big)")
        if self.floor:
            value = Line(f"max({value.text}, {self.floor:g})", rf"\max\Big({value.latex}, {self.floor:g}\Big)")
        return _part(value, self.level, self.normalize, "; v_t never is")


@dataclass(frozen=True)
class Masked:
    """pi_old trainer / pi_old sampler where it lies between two bounds, 0 elsewhere. IcePop, Ring-1T 2510.18855 Eq. 2
    (slime, OpenRLHF, verl, TRL's token_mask); `level: sequence` is TRL's sequence_mask."""

    level: str = option("token", LEVEL_MEANING, source="Ring-1T Eq. 2", choices=("token", "sequence"))
    low: float = option(0.5, "smallest ratio that counts", source="Ring-1T: alpha; TRL", low=0)
    high: float = option(5.0, "largest ratio that counts", source="Ring-1T: beta; TRL", low=1e-6)
    normalize: bool = NORMALIZE
    needs = Needs(sampler_logprobs=True)
    drops = True

    def __post_init__(self) -> None:
        _check_bounds(self.low, self.high, "masked")

    def weights(self, batch: TokenBatch, comm: Comm | None) -> Tensor:
        ratio = _ratio(self.level, batch, "masked")
        weights = torch.where((ratio < self.low) | (ratio > self.high), 0.0, ratio)
        return _normalized(weights, self.level, batch, comm) if self.normalize else weights

    @property
    def explained(self) -> Part:
        ratio = _symbol(self.level)
        value = Line(
            f"u, or 0 where u < {self.low:g} or u > {self.high:g}, u = {ratio.text}",
            rf"u\,\mathbb{{1}}[{self.low:g} \le u \le {self.high:g}],\quad u = {ratio.latex}",
        )
        return _part(value, self.level, self.normalize, "; or v_t = 0")


@dataclass(frozen=True)
class Rejected:
    """1 where an estimate of the divergence from the sampler is small, 0 elsewhere: rejection, without a weight or with
    the truncated ratio of the token.

    verl's rollout_rs. `over: mean` with k1 is geometric sequence masking (OpenRLHF's seq-mask-tis), `over: max` is
    trust region masking 2512.23075 as verl's, by the old policy; by the current one it is `weight: trust_region_mask`.
    verl takes what it rejects out of N and B too; in the paper, and here, it stays. verl's bounds of k1 are for
    pi_sampler / pi_old; these are for its inverse, as OpenRLHF's."""

    estimator: str = option(
        "k1",
        "of a token's divergence from g = log pi_old - log pi_sampler: k1 g; k2 g^2/2; k3 exp(g) - 1 - g",
        source="verl rollout_rs",
        choices=("k1", "k2", "k3"),
    )
    over: str = option(
        "mean",
        "token: each by itself; mean, sum, max: of the response, which is kept or rejected as one",
        source="OpenRLHF seq-mask-tis, verl seq_mean_k1",
        choices=("token", "mean", "sum", "max"),
    )
    low: float = option(
        0.5,
        "k1: smallest exp(k1) kept",
        source="verl's documentation: 0.5_2.0",
        low=0,
        when=lambda kind: kind.estimator == "k1",
    )
    high: float = option(
        2.0, "largest exp(k1), or largest k2 or k3, that is kept", source="verl's documentation: 0.5_2.0", low=0
    )
    cap: float | None = option(
        None, "weight of what is kept: the token's ratio up to this; none: 1", source="verl: two settings", low=1e-6
    )
    needs = Needs(sampler_logprobs=True)
    drops = True

    def __post_init__(self) -> None:
        if self.estimator == "k1":
            _check_bounds(self.low, self.high, "rejected")
            if self.over == "max":
                what, fix = (
                    "correction.over=max takes the largest k1, and k1 has a sign",
                    "k2 or k3, which have no sign",
                )
                raise UserError(what, where="rejected", fix=f"correction.estimator: {fix}")

    def weights(self, batch: TokenBatch, comm: Comm | None) -> Tensor:
        gap = sampler_gap(batch, "correction.kind: rejected")
        values = divergences(gap, self.estimator, self.over, batch)
        if self.estimator == "k1":
            ratio = values.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
            kept = (ratio >= self.low) & (ratio <= self.high)
        else:
            kept = values <= self.high
        return kept.to(gap.dtype) if self.cap is None else kept.to(gap.dtype) * gap.exp().clamp(max=self.cap)

    @property
    def explained(self) -> Part:
        value = divergence_line(Line("g_t", "g_{i,t}"), self.estimator, self.over)
        inside = Line(f"{value.text} <= {self.high:g}", rf"{value.latex} \le {self.high:g}")
        if self.estimator == "k1":
            inside = Line(
                f"{self.low:g} <= exp({value.text}) <= {self.high:g}",
                rf"{self.low:g} \le \exp({value.latex}) \le {self.high:g}",
            )
        weight = Line("1", "1")
        if self.cap is not None:
            weight = Line(f"min(exp(g_t), {self.cap:g})", rf"\min(e^{{g_{{i,t}}}}, {self.cap:g})")
        meaning = Line(
            f"v_t = {weight.text} where {inside.text}, else 0",
            rf"v_{{i,t}} = {weight.latex}\ \mathbb{{1}}\big[{inside.latex}\big]",
        )
        return Part(Line("v_t ", r"v_{i,t}\, "), (GAP, meaning), ("v_t",), zero="; or v_t = 0")


KINDS: dict[str, type[Correction]] = {
    "none": NoCorrection,
    "truncated": Truncated,
    "masked": Masked,
    "rejected": Rejected,
}


def divergences(gap: Tensor, estimator: str, over: str, batch: TokenBatch) -> Tensor:
    """Estimates [N] of a divergence from g = log pi - log pi_sampler [N]: k1 g, k2 g^2/2, k3 exp(g) - 1 - g. over:
    token, or the mean, sum or max of the response on each of its tokens."""
    values = {"k1": gap, "k2": gap * gap / 2, "k3": torch.expm1(gap) - gap}[estimator]
    if over == "token":
        return values
    if over == "max":
        return segment_max(values, batch.lengths)[batch.sequence]
    totals = segment_sum(values, batch.lengths)
    return (totals / batch.lengths.clamp(min=1) if over == "mean" else totals)[batch.sequence]


def divergence_line(gap: Line, estimator: str, over: str) -> Line:
    """The formula of `divergences`, from the symbol of the log-ratio to the sampler."""
    g, latex = gap
    estimate = {
        "k1": gap,
        "k2": Line(f"{g}^2/2", rf"\tfrac12 {latex}^2"),
        "k3": Line(f"(exp({g}) - 1 - {g})", rf"(e^{{{latex}}} - 1 - {latex})"),
    }[estimator]
    front = {
        "token": Line("", ""),
        "mean": Line("1/T_i sum_t ", r"\tfrac{1}{T_i}\sum_t "),
        "sum": Line("sum_t ", r"\sum_t "),
        "max": Line("max_t ", r"\max_t "),
    }[over]
    return Line(front.text + estimate.text, front.latex + estimate.latex)


def _ratio(level: str, batch: TokenBatch, kind: str) -> Tensor:
    """pi_old / pi_sampler of each token, or of its response [N]."""
    gap = sampler_gap(batch, f"correction.kind: {kind}")
    if level == "sequence":
        gap = segment_sum(gap, batch.lengths).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).to(gap.dtype)[batch.sequence]
    return gap.exp()


def _normalized(weights: Tensor, level: str, batch: TokenBatch, comm: Comm | None) -> Tensor:
    """Weights [N] over their mean, that of tokens or of non-empty responses, over all ranks; unchanged if all are 0."""
    if level == "token":
        own, number = weights.double(), weights.new_tensor(float(weights.shape[0]), dtype=torch.float64)
    else:
        full = batch.lengths > 0
        own, number = weights[starts_of(batch.lengths)[full]].double(), full.sum().double()
    total, number = all_sum(torch.stack([own.sum(), number]), comm)
    return weights * torch.where(total == 0, 1.0, number / total).to(weights.dtype)


def _check_bounds(low: float, high: float, kind: str) -> None:
    if low > high:
        what = f"correction.low {low:g} and correction.high {high:g} leave nothing"
        raise UserError(what, where=kind, fix="low below high")


def _symbol(level: str) -> Line:
    latex = r"\frac{\pi_{\mathrm{old}}}{\pi_{\mathrm{sampler}}}"
    if level == "token":
        return Line("pi_old / pi_sampler of the token", latex)
    return Line("product of pi_old / pi_sampler over the response", rf"\prod_t {latex}")


def _part(value: Line, level: str, normalize: bool, zero: str) -> Part:
    mean = f"; v_t then over its mean over {'tokens' if level == 'token' else 'responses'}" if normalize else ""
    latex = r",\quad v \leftarrow v / \bar v" if normalize else ""
    meaning = Line(f"v_t = {value.text}{mean}", rf"v_{{i,t}} = {value.latex}{latex}")
    return Part(Line("v_t ", r"v_{i,t}\, "), (meaning,), ("v_t",), zero=zero)
