"""Penalty axis: terms beside the policy term, on all tokens or on a mask."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.common.kl_estimators import DEFAULT, KlEstimator
from tepo.common.schema import option
from tepo.objectives.axes.selection import SCOPE_MEANING, SCOPES, covariance, draws, token_count, top_tokens
from tepo.objectives.axis import Kind, Line, Needs, Part
from tepo.objectives.batch import Comm, TokenBatch, all_sum
from tepo.objectives.segments import sequence_mean, total
from tepo.objectives.terms import Terms, finite_logprobs, log_ratio

POSITIVE_FALLING = "positive_advantage_falling_entropy"
NEGATIVE_RISING = "negative_advantage_rising_entropy"
EITHER = "either"
BY_CHANGE = (POSITIVE_FALLING, NEGATIVE_RISING, EITHER)
MASKS = {
    POSITIVE_FALLING: Line("A > 0 and dH < 0", r"A_{i,t} > 0 \wedge \Delta H_{i,t} < 0"),
    NEGATIVE_RISING: Line("A < 0 and dH > 0", r"A_{i,t} < 0 \wedge \Delta H_{i,t} > 0"),
    EITHER: Line(
        "(A > 0 and dH < 0) or (A < 0 and dH > 0)",
        r"(A_{i,t} > 0 \wedge \Delta H_{i,t} < 0) \vee (A_{i,t} < 0 \wedge \Delta H_{i,t} > 0)",
    ),
    "top_covariance": Line(
        "the largest (log pi_t - mean)(A - mean)",
        r"(\log\pi_{i,t} - \overline{\log\pi})(A_{i,t} - \bar A)\ \text{among the largest}",
    ),
}
CHANGES = {
    "measured": Line(
        "dH = H(pi) - H(pi_old) at the token's prefix", r"\Delta H_{i,t} = H(\pi_\theta) - H(\pi_{\mathrm{old}})"
    ),
    "covariance": Line(
        "sign dH = -sign (log pi_t - mean)(A - mean)",
        r"\mathrm{sign}\,\Delta H_{i,t} = -\mathrm{sign}\,(\log\pi_{i,t} - \overline{\log\pi})(A_{i,t} - \bar A)",
    ),
    "omega": Line(
        "sign dH = -sign A (log pi_t + H)",
        r"\mathrm{sign}\,\Delta H_{i,t} = -\mathrm{sign}\,A_{i,t}(\log\pi_{i,t} + H_{i,t})",
    ),
}


class Estimator(NamedTuple):
    """A token's KL from e = log pi_t - log anchor_t, and its derivative by log pi_t in words."""

    value: Line
    slope: str


_EXACT = Line(
    "sum_v pi(v) log(pi(v)/anchor(v))", r"\sum_v \pi_\theta(v) \log\frac{\pi_\theta(v)}{\pi_{\mathrm{anchor}}(v)}"
)
ESTIMATORS = {
    "k1": Estimator(Line("e", r"e_{i,t}"), "1"),
    "k2": Estimator(Line("e^2/2", r"\tfrac12 e_{i,t}^2"), "e"),
    "k3": Estimator(Line("exp(-e) + e - 1", r"\exp(-e_{i,t}) + e_{i,t} - 1"), "(1 - exp(-e))"),
    "abs": Estimator(Line("|e|", r"|e_{i,t}|"), "sign(e)"),
    "r_k3": Estimator(Line("r_t (exp(-e) + e - 1)", r"r_{i,t}\,\big(\exp(-e_{i,t}) + e_{i,t} - 1\big)"), "r_t e"),
    "k2_response": Estimator(
        Line("(sum_s e_s)^2 / (2 T_i)", r"\tfrac{1}{2 T_i} \big(\sum_s e_{i,s}\big)^2"), "sum_s e_s"
    ),
    "full": Estimator(_EXACT, "(exact gradient, through all logits)"),
}


class Selection(NamedTuple):
    """Tokens that were chosen out of a set: where a penalty acts, bool [N], and its weights in the sum [N] where these
    are not the aggregation's."""

    mask: Tensor
    scale: Tensor | None = None


class Term(NamedTuple):
    """A penalty's sum before its coefficient, the name of its metric, and diagnostics per token [N], detached."""

    total: Tensor
    metric: str
    tokens: dict[str, Tensor]


class Penalty(Kind, Protocol):
    """A term beside the policy term. in_loss: what its sum is multiplied by in the loss. selects: the set that it looks
    at as one to choose tokens, mini_batch or micro_batch; None: it judges each token by itself. reports_size: whether
    verl's `actor/ppo_kl` beside it is |d|."""

    @property
    def in_loss(self) -> float: ...
    @property
    def selects(self) -> str | None: ...
    @property
    def reports_size(self) -> bool: ...

    def select(self, terms: Terms, comm: Comm | None, salt: int) -> Selection | None:
        """The tokens that it chooses out of `selects`; None: it chooses none so."""

    def term(self, terms: Terms, chosen: Selection | None, scale: Tensor) -> Term:
        """Its sum. chosen: from `select`; scale: the aggregation's weights [N]."""


@dataclass(frozen=True)
class Kl:
    """- beta KL(pi || anchor) on a mask of tokens. TEPO Eq. 4, GRPO Eq. 3, KL-Cov."""

    coefficient: float = option(0.001, "beta", source="TEPO 4.1 (Qwen2.5-7B)")
    estimator: KlEstimator = option(
        DEFAULT,
        "of a token's KL; full: exact, over the vocabulary; k2_response: k2 of the response's log-ratio",
        source="GRPO Eq. 4, the default of verl and TRL (reading A3)",
    )
    anchor: str = option(
        "old",
        "old: the policy that sampled; initial: the one before training",
        source="TEPO Eq. 4",
        choices=("old", "initial"),
    )
    tokens: str = option(
        "all",
        "where it acts; top_covariance: the share `fraction` with the largest covariance of log-prob and advantage",
        choices=("all", *BY_CHANGE, "top_covariance"),
    )
    entropy_change: str = option(
        "measured",
        "its sign: measured H(pi) - H(pi_old); covariance: -(log pi - mean)(A - mean), Eq. 18; "
        "omega: -A (log pi + H), STEER",
        source="TEPO C.2 (reading A2)",
        choices=("measured", "covariance", "omega"),
        when=lambda kl: kl.tokens in BY_CHANGE,
    )
    tolerance: float = option(
        1e-6,
        "entropy changes up to this count as none",
        source="float32 rounding (reading A2)",
        low=0,
        when=lambda kl: kl.tokens in BY_CHANGE,
    )
    fraction: float = option(
        2e-3,
        "top_covariance: share of the tokens; at least one",
        source="Cui et al. 2505.22617 4.3 (7B); TEPO 4.1",
        low=0,
        high=1,
        when=lambda kl: kl.tokens == "top_covariance",
    )
    mean_over: str = option(
        "tokens",
        "tokens: the aggregation's weights; masked: a mean over the tokens where it acts",
        source="TEPO Eq. 4 (reading A10)",
        choices=("tokens", "masked"),
        when=lambda kl: kl.tokens != "all",
    )
    scope: str = option(
        "mini_batch", SCOPE_MEANING, source="the papers' definition", choices=SCOPES, when=lambda kl: kl.looks_at_all
    )

    def __post_init__(self) -> None:
        if self.estimator == "k2_response" and self.tokens != "all":
            what = f"penalty.tokens: {self.tokens} picks tokens, and k2_response is of responses"
            raise UserError(what, where="penalty", fix="penalty.estimator: k2")

    @property
    def in_loss(self) -> float:
        return self.coefficient

    @property
    def looks_at_all(self) -> bool:
        """True where the mask or its mean takes a look at all tokens of a set."""
        return self.reports_size or (
            self.tokens in BY_CHANGE and (self.entropy_change == "covariance" or self.mean_over == "masked")
        )

    @property
    def selects(self) -> str | None:
        return self.scope if self.looks_at_all else None

    @property
    def reports_size(self) -> bool:
        return self.tokens == "top_covariance"

    @property
    def needs(self) -> Needs:
        change, full = self.entropy_change if self.tokens in BY_CHANGE else "", self.estimator == "full"
        return Needs(
            entropies=change == "measured",
            old_entropies=change in ("measured", "omega"),
            initial_logprobs=self.anchor == "initial" and not full,
            full_kl=full,
            full_kl_anchor=self.anchor,
            uid=self.tokens == "top_covariance",
        )

    def select(self, terms: Terms, comm: Comm | None, salt: int) -> Selection | None:
        mask = self._mask(terms, comm, salt) if self.looks_at_all else None
        if mask is None or self.mean_over == "tokens":
            return mask if mask is None else Selection(mask)
        number = all_sum(mask.sum(), comm).clamp(min=1)
        return Selection(mask, mask.to(terms.batch.advantages.dtype) / number)

    def term(self, terms: Terms, chosen: Selection | None, scale: Tensor) -> Term:
        if chosen is not None and chosen.scale is not None:
            scale = chosen.scale
        batch, delta = terms.batch, terms.d
        if self.anchor == "initial" and self.estimator != "full":
            anchor = batch.want("initial_logprobs", "penalty.anchor: initial")
            delta = log_ratio(terms.logprobs, finite_logprobs(anchor))
        if self.estimator == "full":
            values = batch.want("full_kl", "penalty.estimator: full")
        elif self.estimator == "k2_response":
            values = sequence_mean(delta, batch.lengths, batch.sequence) ** 2 * batch.lengths[batch.sequence] / 2
        else:
            values = kl_estimate(self.estimator, delta, terms.d.exp() if self.estimator == "r_k3" else None)
        mask = self._mask(terms, None, 0) if chosen is None else chosen.mask
        tokens = {"kl": values.detach()}
        if mask is None:
            return Term(total(scale * values), "actor/kl_loss", tokens)
        return Term(total(torch.where(mask, scale * values, 0.0)), "actor/kl_loss", tokens | {"kl_mask": mask})

    def _mask(self, terms: Terms, comm: Comm | None, salt: int) -> Tensor | None:
        """Mask of the tokens on which the KL acts, bool [N]; None: all."""
        batch = terms.batch
        if self.tokens == "all":
            return None
        if self.tokens == "top_covariance":
            number = max(1, int(self.fraction * token_count(batch, comm)))
            return top_tokens(covariance(terms.logprobs, batch.advantages, comm), draws(batch, salt), number, comm)
        change = entropy_change(self.entropy_change, terms.logprobs, batch, comm)
        return changed_tokens(self.tokens, change, batch.advantages, self.tolerance)

    @property
    def explained(self) -> Part:
        estimator, everywhere, full = ESTIMATORS[self.estimator], self.tokens == "all", self.estimator == "full"
        sign, mask = _signed(-self.coefficient), Line("", "") if everywhere else Line(" M", r"\, M_{i,t}")
        anchor = f", anchor: the {self.anchor} policy" + ("" if full else ", e = log pi_t - log anchor_t")
        meanings = [Line(f"KL_t = {estimator.value.text}{anchor}", rf"\mathrm{{KL}}_{{i,t}} = {estimator.value.latex}")]
        if not everywhere:
            where = MASKS[self.tokens]
            latex = rf"M_{{i,t}} = \mathbb{{1}}\big[{where.latex}\big]"
            meanings.append(Line(f"M = 1 where {where.text}, else 0", latex))
        if self.tokens in BY_CHANGE:
            meanings.append(CHANGES[self.entropy_change])
        if self.mean_over == "masked":
            text = "the KL term is averaged over the tokens with M = 1, not by the sums' weights"
            meanings.append(Line(text, r"\text{KL averaged over } M_{i,t} = 1"))
        detached = () if everywhere else ("M and all that it is made of",)
        return Part(
            Line(f"{sign} KL_t{mask.text}", rf"{sign}\, \mathrm{{KL}}_{{i,t}}{mask.latex}"),
            tuple(meanings),
            (*detached, f"the {self.anchor} policy") if full or self.anchor == "initial" else detached,
            coefficient=f"{sign}{mask.text} {estimator.slope}",
        )


@dataclass(frozen=True)
class EntropyBonus:
    """+ c H of the current policy, with its gradient; c > 0 raises entropy (Max-Entropy), c < 0 lowers it. TEPO Table 3
    Panel B."""

    coefficient: float = option(
        0.001, "c", source="TEPO prints none: verl's default up to v0.3, and in the grid of Cui et al. 4.1"
    )
    needs = Needs(entropy_gradient=True, entropies=True)
    selects = None
    reports_size = False

    @property
    def in_loss(self) -> float:
        return -self.coefficient

    def select(self, terms: Terms, comm: Comm | None, salt: int) -> None:
        return None

    def term(self, terms: Terms, chosen: Selection | None, scale: Tensor) -> Term:
        return Term(total(scale * terms.batch.want("entropies", "penalty.kind: entropy")), "actor/entropy_loss", {})

    @property
    def explained(self) -> Part:
        sign = _signed(self.coefficient)
        slope = f"{sign} grad H_t (through all logits: dH/dz_v = -pi_v (log pi_v + H))"
        return Part(Line(f"{sign} H_t", rf"{sign}\, H_{{i,t}}"), coefficient=slope)


KINDS: dict[str, type[Penalty]] = {"kl": Kl, "entropy": EntropyBonus}


def _signed(coefficient: float) -> str:
    """A coefficient in J with its sign in front."""
    return f"{'+' if coefficient > 0 else '-'} {abs(coefficient):g}"


def kl_estimate(estimator: str, d: Tensor, ratio: Tensor | None = None) -> Tensor:
    """Estimate [N] of KL(pi || anchor) from d = log pi - log anchor at the sampled token: Schulman's k1, k2, k3;
    |d|; and ratio * k3 with ratio = pi / pi_old, unbiased for samples of the old policy (DeepSeek-V3.2)."""
    match estimator, ratio:
        case "k1", _:
            return d
        case "k2", _:
            return 0.5 * d * d
        case "abs", _:
            return d.abs()
        case "k3", _:
            return torch.expm1(-d) + d
        case "r_k3", Tensor():
            return ratio * (torch.expm1(-d) + d)
    raise ValueError(f"{estimator} is not estimated from log-ratios")


def entropy_change(kind: str, logprobs: Tensor, batch: TokenBatch, comm: Comm | None) -> Tensor:
    """The entropy change of each token [N] (`omega` and `covariance`: a number of its sign), detached."""
    why = f"penalty.entropy_change: {kind}"
    if kind == "covariance":
        return -covariance(logprobs, batch.advantages, comm)
    old = batch.want("old_entropies", why)
    if kind == "omega":
        return -batch.advantages * (logprobs.detach() + old)
    return batch.want("entropies", why).detach() - old


def changed_tokens(tokens: str, change: Tensor, advantages: Tensor, tolerance: float) -> Tensor:
    """The mask M of TEPO Eq. 4 and its variants (Table 3 Panel E), bool [N],
    from entropy changes [N] and advantages [N]."""
    falling = (advantages > 0) & (change < -tolerance)
    if tokens == POSITIVE_FALLING:
        return falling
    rising = (advantages < 0) & (change > tolerance)
    return rising if tokens == NEGATIVE_RISING else falling | rising
