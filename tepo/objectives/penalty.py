"""Penalty axis: terms beside the policy term, on all tokens or on a mask."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tepo.kl_estimators import DEFAULT, KlEstimator
from tepo.objectives.batch import Comm, TokenBatch
from tepo.objectives.ratio import finite_logprobs, log_ratio
from tepo.objectives.selection import covariance, draws, token_count, top_tokens
from tepo.objectives.weight import SCOPE_MEANING, SCOPES
from tepo.strict import option

POSITIVE_FALLING, NEGATIVE_RISING, EITHER = (
    "positive_advantage_falling_entropy",
    "negative_advantage_rising_entropy",
    "either",
)
BY_CHANGE = (POSITIVE_FALLING, NEGATIVE_RISING, EITHER)


@dataclass(frozen=True)
class Kl:
    """- beta KL(pi || anchor) on a mask of tokens. TEPO Eq. 4, GRPO Eq. 3, KL-Cov."""

    coefficient: float = option(0.001, "beta", source="TEPO 4.1 (Qwen2.5-7B)")
    estimator: KlEstimator = option(
        DEFAULT,
        "of a token's KL; full: exact, over the vocabulary",
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
    )
    tolerance: float = option(
        1e-6, "entropy changes up to this count as none", source="float32 rounding (reading A2)", low=0
    )
    fraction: float = option(
        2e-3,
        "top_covariance: share of the tokens; at least one",
        source="Cui et al. 2505.22617 4.3 (7B); TEPO 4.1",
        low=0,
        high=1,
    )
    mean_over: str = option(
        "tokens",
        "tokens: the aggregation's weights; masked: a mean over the tokens where it acts",
        source="TEPO Eq. 4 (reading A10)",
        choices=("tokens", "masked"),
    )
    scope: str = option("mini_batch", SCOPE_MEANING, source="the papers' definition", choices=SCOPES)


@dataclass(frozen=True)
class EntropyBonus:
    """+ c H of the current policy, with its gradient; c > 0 raises entropy (Max-Entropy), c < 0 lowers it.

    TEPO Table 3 Panel B.
    """

    coefficient: float = option(
        0.001, "c", source="TEPO prints none: verl's default up to v0.3, and in the grid of Cui et al. 4.1"
    )


KINDS = {"kl": Kl, "entropy": EntropyBonus}
Penalty = Kl | EntropyBonus


def kl_estimate(estimator: str, d: Tensor, ratio: Tensor | None = None) -> Tensor:
    """Estimate [N] of KL(pi || anchor) from d = log pi - log anchor at the sampled token: Schulman's k1, k2, k3;
    |d|; and ratio * k3 with ratio = pi / pi_old, unbiased for samples of the old policy (DeepSeek-V3.2)."""
    match estimator:
        case "k1":
            return d
        case "k2":
            return 0.5 * d * d
        case "abs":
            return d.abs()
    k3 = torch.expm1(-d) + d
    return k3 if estimator == "k3" or ratio is None else ratio * k3


def kl_values(options: Kl, d: Tensor, logprobs: Tensor, batch: TokenBatch) -> Tensor:
    """The KL at each token [N] with its gradient. d: log-ratios to the old policy [N]."""
    if options.estimator == "full":
        return batch.want("full_kl", "penalty.estimator: full")
    delta = (
        d
        if options.anchor == "old"
        else log_ratio(logprobs, finite_logprobs(batch.want("initial_logprobs", "penalty.anchor: initial")))
    )
    return kl_estimate(options.estimator, delta, d.exp() if options.estimator == "r_k3" else None)


def is_global(options: Penalty) -> bool:
    """Whether the mask takes a look at the whole mini-batch."""
    return isinstance(options, Kl) and (
        options.tokens == "top_covariance"
        or (options.tokens in BY_CHANGE and (options.entropy_change == "covariance" or options.mean_over == "masked"))
    )


def mask(options: Kl, logprobs: Tensor, batch: TokenBatch, comm: Comm | None, salt: int) -> Tensor | None:
    """Where the KL acts, bool [N]; None: everywhere. logprobs: current, finite [N]."""
    if options.tokens == "all":
        return None
    if options.tokens == "top_covariance":
        count = max(1, int(options.fraction * token_count(batch, comm)))
        return top_tokens(covariance(logprobs, batch.advantages, comm), draws(batch, salt), count, comm)
    return changed_tokens(
        options.tokens,
        entropy_change(options.entropy_change, logprobs, batch, comm),
        batch.advantages,
        options.tolerance,
    )


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
