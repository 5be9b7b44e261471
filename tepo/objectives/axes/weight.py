"""Weight axis: a detached factor on each token's policy term."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.common.schema import option
from tepo.objectives.axes.correction import divergence_line, divergences
from tepo.objectives.axes.moments import largest
from tepo.objectives.axes.selection import SCOPE_MEANING, SCOPES, covariance, draws, order, token_count, top_tokens
from tepo.objectives.axis import GAP, Kind, Line, Needs, Part
from tepo.objectives.batch import Comm, TokenBatch
from tepo.objectives.segments import sequence_mean
from tepo.objectives.terms import Terms, sampler_gap

LAMBDA = Line("lambda_t ", r"\lambda_{i,t}\, ")


class Weight(Kind, Protocol):
    """A detached factor on each token's policy term. drops: whether weights may be 0; verl counts such tokens as
    clipped. scope: the set that it looks at as one, mini_batch or micro_batch; None: none, and it weighs all tokens
    alike."""

    @property
    def drops(self) -> bool: ...
    @property
    def scope(self) -> str | None: ...

    def token_weights(self, terms: Terms, clipped: Tensor | None, comm: Comm | None, salt: int) -> Tensor | None:
        """Weight of each token [N], detached; None: 1 for all. clipped: where the surrogate's clip acts [N]."""


@dataclass(frozen=True)
class Uniform:
    """Every token alike."""

    needs = Needs()
    drops = False
    scope = None
    explained = Part()

    def token_weights(self, terms: Terms, clipped: Tensor | None, comm: Comm | None, salt: int) -> None:
        return None


@dataclass(frozen=True)
class ClipCov:
    """0 on randomly drawn tokens of high covariance that the clip left alone, 1 elsewhere. Cui et al. 2505.22617."""

    fraction: float = option(
        2e-4, "tokens to draw, as a share of all; at least one", source="Cui et al. 4.3; TEPO 4.1", low=0, high=1
    )
    low: float = option(1.0, "smallest covariance of a candidate", source="Cui et al. 4.3")
    high: float = option(5.0, "largest covariance of a candidate", source="Cui et al. 4.3")
    scope: str = option("mini_batch", SCOPE_MEANING, source="the paper's definition", choices=SCOPES)
    needs = Needs(uid=True)
    drops = True

    def __post_init__(self) -> None:
        if self.low >= self.high:
            what = f"weight.low {self.low:g} and weight.high {self.high:g} leave no token to draw"
            raise UserError(what, where="clip_cov", fix="low below high (Cui et al.: 1 and 5)")

    def token_weights(self, terms: Terms, clipped: Tensor | None, comm: Comm | None, salt: int) -> Tensor:
        batch = terms.batch
        scores = covariance(terms.logprobs, batch.advantages, comm)
        candidate = (scores > self.low) & (scores < self.high)
        if clipped is not None:
            candidate &= ~clipped
        number = draws(batch, salt)
        drop = max(int(self.fraction * token_count(batch, comm)), 1)
        dropped = top_tokens(torch.where(candidate, -number, -torch.inf), number, drop, comm)
        return 1 - dropped.to(batch.advantages.dtype)

    @property
    def explained(self) -> Part:
        latex = rf"{self.low:g} < (\log\pi_{{i,t}} - \overline{{\log\pi}})(A_{{i,t}} - \bar A) < {self.high:g}"
        meaning = Line(
            f"lambda_t = 0 on {self.fraction:g} N tokens (at least one) drawn among those with "
            f"{self.low:g} < (log pi_t - mean)(A - mean) < {self.high:g} that the clip left alone, else 1",
            rf"\lambda_{{i,t}} = 0 \text{{ on }} \max(1, \lfloor {self.fraction:g} N \rfloor) "
            rf"\text{{ tokens drawn where }} {latex}",
        )
        return Part(LAMBDA, (meaning,), ("lambda_t",), zero="; or the token was drawn (lambda_t = 0)")


@dataclass(frozen=True)
class Steer:
    """A weight that falls with the size of a token's estimated entropy change Omega. STEER 2510.10150 (TEPO's
    'STEEL')."""

    form: str = option(
        "code",
        "code: A/pi_old pi (1-pi) (log pi + H); theorem: I_clip r A pi (1-pi) (log pi + H); H of the old policy",
        source="STEER's released code",
        choices=("code", "theorem"),
    )
    shape: str = option(
        "exponential",
        "exp(-k |Omega|), floor at the largest |Omega|; or linear from ceiling to floor",
        source="run_exp.sh",
        choices=("exponential", "linear"),
    )
    floor: float = option(0.8, "smallest weight", source="run_exp.sh and run_linear.sh (token_weight_min)", low=1e-6)
    ceiling: float = option(1.0, "largest weight (1.2 in run_linear.sh)", source="run_exp.sh", low=1e-6)
    scale_floor: float = option(
        0.02,
        "exponential: the largest |Omega| counts as at least this",
        source="released code only; 0 is the paper's form",
        low=0,
        when=lambda weight: weight.shape == "exponential",
    )
    scope: str = option("mini_batch", SCOPE_MEANING, source="like every statistic here", choices=SCOPES)
    needs = Needs(old_entropies=True)
    drops = False

    def __post_init__(self) -> None:
        if self.floor > self.ceiling:
            what = f"weight.floor {self.floor:g} is above weight.ceiling {self.ceiling:g}"
            raise UserError(what, where="steer", fix="the other way round: the largest |Omega| gets the floor")
        if self.shape == "exponential" and self.ceiling > 1:
            what = f"weight.ceiling {self.ceiling:g} is never reached: the exponential starts at 1"
            raise UserError(what, where="steer", fix="weight.shape=linear, or a ceiling of at most 1")

    def token_weights(self, terms: Terms, clipped: Tensor | None, comm: Comm | None, salt: int) -> Tensor:
        size = entropy_change_estimate(self.form, terms.batch, terms.logprobs, clipped).abs()
        top, bottom = largest(size, comm), -largest(-size, comm)
        if self.shape == "exponential":
            weights = torch.exp(size * math.log(self.floor) / top.clamp(min=max(self.scale_floor, 1e-300)))
            weights = weights.clamp(self.floor, self.ceiling)
        else:
            rank = torch.where(top > bottom, (size - bottom) / (top - bottom), 0.5)
            weights = self.ceiling + (self.floor - self.ceiling) * rank
        return weights.to(terms.batch.advantages.dtype)

    @property
    def explained(self) -> Part:
        front = {
            "code": Line("A/pi_old", r"\tfrac{A}{\pi_{\mathrm{old}}}"),
            "theorem": Line("I_clip r A", r"\mathbb{1}_{\mathrm{clip}}\, r A"),
        }[self.form]
        fall = {
            "exponential": Line(
                f"exp(log({self.floor:g}) |Omega_t| / max |Omega|)",
                rf"\exp\Big(\ln {self.floor:g}\,\frac{{|\Omega_{{i,t}}|}}{{\max|\Omega|}}\Big)",
            ),
            "linear": Line(
                f"from {self.ceiling:g} at the smallest |Omega| to {self.floor:g} at the largest",
                rf"\text{{linear in }} |\Omega_{{i,t}}| \text{{ from }} {self.ceiling:g} \text{{ to }} {self.floor:g}",
            ),
        }[self.shape]
        meaning = Line(
            f"lambda_t = {fall.text}, Omega_t = {front.text} pi (1-pi) (log pi + H)",
            rf"\lambda_{{i,t}} = {fall.latex},\quad \Omega_{{i,t}} = {front.latex}\,\pi (1-\pi)(\log\pi + H)",
        )
        return Part(LAMBDA, (meaning,), ("lambda_t",))


@dataclass(frozen=True)
class OffPolicyMask:
    """0 on the tokens with A < 0 of responses that have become improbable, 1 elsewhere. Off-policy sequence masking
    (OPSM), DeepSeek-V3.2 2512.02556 section 3.1; TRL and slime. The old policy there, and in TRL, is the sampler's;
    slime's and ours is the old policy of the row."""

    threshold: float = option(
        0.5, "delta, for the mean of log pi_old - log pi over the response", source="TRL; the paper prints none", low=0
    )
    needs = Needs()
    drops = True
    scope = "micro_batch"  # a response is judged by itself, so that no split changes it

    def token_weights(self, terms: Terms, clipped: Tensor | None, comm: Comm | None, salt: int) -> Tensor:
        batch = terms.batch
        drift = -sequence_mean(terms.d.detach(), batch.lengths, batch.sequence)
        return 1 - ((drift > self.threshold) & (terms.advantages < 0)).to(batch.advantages.dtype)

    @property
    def explained(self) -> Part:
        meaning = Line(
            f"lambda_t = 0 where A < 0 and -1/T_i sum_s d_s > {self.threshold:g}, else 1",
            r"\lambda_{i,t} = 0\ \big(A_{i,t} < 0 \wedge -\tfrac{1}{T_i}\sum_s d_{i,s}"
            rf" > {self.threshold:g}\big),\quad 1\ \text{{elsewhere}}",
        )
        return Part(LAMBDA, (meaning,), ("lambda_t",), zero="; or lambda_t = 0")


@dataclass(frozen=True)
class TrustRegionMask:
    """0 on the responses that the current policy has left the sampler's by too far, 1 elsewhere. Trust region masking
    (TRM), Li et al. 2512.23075: max over the tokens of KL(pi_sampler || pi) over the vocabulary, or by the sampled
    token alone, |log(pi / pi_sampler)| for the max and k3 for the mean. k2 is half the square of the former."""

    estimator: str = option(
        "k2",
        "of a token's divergence from e = log pi - log pi_sampler: k2 e^2/2; k3 exp(e) - 1 - e",
        source="TRM: |e| for the max, k3 for the mean",
        choices=("k2", "k3"),
    )
    over: str = option(
        "max", "of the response's tokens", source="TRM; mean: its average criterion", choices=("max", "mean")
    )
    high: float = option(
        2.5,
        "largest divergence that is kept",
        source="verl's documentation; TRM's 0.05 (max) and 0.001 (mean) are of the KL over the vocabulary",
        low=0,
    )
    needs = Needs(sampler_logprobs=True)
    drops = True
    scope = "micro_batch"  # a response is judged by itself, so that no split changes it

    def token_weights(self, terms: Terms, clipped: Tensor | None, comm: Comm | None, salt: int) -> Tensor:
        batch = terms.batch
        distance = terms.d.detach() + sampler_gap(batch, "weight.kind: trust_region_mask")
        return (divergences(distance, self.estimator, self.over, batch) <= self.high).to(batch.advantages.dtype)

    @property
    def explained(self) -> Part:
        value = divergence_line(Line("e_t", "e_{i,t}"), self.estimator, self.over)
        distance = Line("e_t = d_t + g_t", r"e_{i,t} = d_{i,t} + g_{i,t}")
        meaning = Line(
            f"lambda_t = 1 where {value.text} <= {self.high:g}, else 0",
            rf"\lambda_{{i,t}} = \mathbb{{1}}\big[{value.latex} \le {self.high:g}\big]",
        )
        return Part(LAMBDA, (GAP, distance, meaning), ("lambda_t",), zero="; or lambda_t = 0")


@dataclass(frozen=True)
class TopEntropy:
    """1 on the tokens of largest current entropy, 0 on the others. Wang et al. 2506.01939, the 80/20 rule; TRL. The
    paper and TRL take the entropies at or above a quantile, so that ties may add tokens; here exactly the share."""

    fraction: float = option(
        0.2, "tokens that stay, as a share of all; at least one", source="Wang et al. 5.2", low=0, high=1
    )
    mean_over: str = option(
        "tokens",
        "tokens: the sums' weights as they are; kept: these times all tokens over those that stay",
        source="TRL; kept: Wang et al. version 2, Eq. 6, whose denominator counts the tokens that stay",
        choices=("tokens", "kept"),
    )
    ties: str = option(
        "draw",
        "which of equal entropies stay: draw, by lot; first, by uid and then by position",
        source="a choice: Eq. 6 keeps all that tie",
        choices=("draw", "first"),
    )
    scope: str = option("mini_batch", SCOPE_MEANING, source="the paper's definition", choices=SCOPES)
    needs = Needs(entropies=True, uid=True)
    drops = True

    def token_weights(self, terms: Terms, clipped: Tensor | None, comm: Comm | None, salt: int) -> Tensor:
        batch = terms.batch
        number = max(1, int(self.fraction * token_count(batch, comm)))
        entropies = batch.want("entropies", "weight.kind: top_entropy").detach().double()
        ties = draws(batch, salt) if self.ties == "draw" else order(batch, comm)
        kept = top_tokens(entropies, ties, number, comm).to(batch.advantages.dtype)
        return kept if self.mean_over == "tokens" else kept * (token_count(batch, comm) / number)

    @property
    def explained(self) -> Part:
        number = rf"\max(1, \lfloor {self.fraction:g} N \rfloor)"
        factor = Line("1", "1") if self.mean_over == "tokens" else Line("N / their number", rf"N / {number}")
        meaning = Line(
            f"lambda_t = {factor.text} on the {self.fraction:g} N tokens (at least one) of largest entropy H_t, else 0",
            rf"\lambda_{{i,t}} = {factor.latex} \text{{ on the }} {number} "
            r"\text{ tokens of largest } H_{i,t},\quad 0\ \text{elsewhere}",
        )
        return Part(LAMBDA, (meaning,), ("lambda_t",), zero="; or lambda_t = 0")


KINDS: dict[str, type[Weight]] = {
    "uniform": Uniform,
    "clip_cov": ClipCov,
    "steer": Steer,
    "off_policy_mask": OffPolicyMask,
    "trust_region_mask": TrustRegionMask,
    "top_entropy": TopEntropy,
}


def entropy_change_estimate(form: str, batch: TokenBatch, logprobs: Tensor, clipped: Tensor | None) -> Tensor:
    """Omega of each token, float64 [N]: STEER's first-order estimate of what the update does to the entropy."""
    current, old = logprobs.double(), batch.old_logprobs.double().clamp(min=math.log(1e-8))
    current = current.exp().clamp(1e-8, 1 - 1e-8).log()
    entropies = batch.want("old_entropies", "weight.kind: steer").double()
    omega = batch.advantages.double() * (current - old).exp() * -torch.expm1(current) * (current + entropies)
    if form == "theorem":
        omega = omega * current.exp()
        omega = torch.where(clipped, 0.0, omega) if clipped is not None else omega
    return omega
