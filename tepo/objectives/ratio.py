"""Ratio axis: the importance ratio of each token, from d = log pi - log pi_old."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tepo.objectives.batch import TokenBatch
from tepo.objectives.options import option
from tepo.objectives.segments import prefix_mean, sequence_mean

LOG_RATIO_BOUND = 20.0  # verl core_algos.py: log-ratios are clamped to +-20 before exp, with no gradient outside
LOGPROB_FLOOR = -1e5  # stands for log 0 (a token off the policy's support): finite, and without gradient


@dataclass(frozen=True)
class Token:
    """r_t = pi(y_t) / pi_old(y_t). PPO 1707.06347, GRPO."""


@dataclass(frozen=True)
class Sequence:
    """One ratio for the whole response: the mean of its token ratios."""

    mean: str = option(
        "geometric",
        "exp(mean d), or the mean of exp(d)",
        source="GSPO 2507.18071 section 4.1, TEPO 3.3.1; arithmetic: GRPO-S Eq. 6",
        choices=("geometric", "arithmetic"),
    )
    gradient: str = option(
        "full",
        "full: autodiff through the mean; local: each token's own log-prob only (GSPO-token); "
        "line_21: TEPO Algorithm 1 line 21 as printed, an extra 1/T",
        source="autodiff of TEPO Algorithm 1 line 18 (reading A7)",
        choices=("full", "local", "line_21"),
    )


@dataclass(frozen=True)
class Prefix:
    """p_t = exp(mean of d over tokens 1..t). TEPO Table 3 Panel C and Table 5."""

    gradient: str = option(
        "local",
        "local: each token's own log-prob; full: autodiff, which weights token j by sum_{t>=j} p_t/t",
        source="a like-for-like ablation of the ratio alone",
        choices=("local", "full"),
    )


@dataclass(frozen=True)
class NoRatio:
    """No importance correction: REINFORCE, GPG."""


LEVELS = {"token": Token, "sequence": Sequence, "prefix": Prefix, "none": NoRatio}
Ratio = Token | Sequence | Prefix | NoRatio


def finite_logprobs(logprobs: Tensor) -> Tensor:
    """Log-probs with -inf replaced by a finite floor (no gradient there).

    NaN stays NaN, to be caught by the trainer.
    """
    return logprobs.clamp(min=LOGPROB_FLOOR)


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """d [N], clamped to +-LOG_RATIO_BOUND; both arguments through `finite_logprobs`."""
    return (logprobs - old_logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def importance_ratio(options: Ratio, d: Tensor, batch: TokenBatch) -> Tensor | None:
    """The ratio of each token [N] with its gradient, None for no ratio. d: [N] from `log_ratio`."""
    match options:
        case Token():
            return d.exp()
        case Sequence(mean="geometric", gradient="full"):
            return sequence_mean(d, batch.lengths, batch.rows).exp()
        case Sequence(mean="arithmetic", gradient="full"):
            return sequence_mean(d.exp(), batch.lengths, batch.rows)
        case Sequence(mean=mean, gradient=gradient):
            with torch.no_grad():
                value = sequence_mean(d if mean == "geometric" else d.exp(), batch.lengths, batch.rows)
                value = value.exp() if mean == "geometric" else value
            own = d - d.detach()  # 0 in value, 1 in gradient
            return value * (1 + (own if gradient == "local" else own / batch.lengths[batch.rows]))
        case Prefix(gradient="full"):
            return prefix_mean(d, batch.lengths, batch.rows).exp()
        case Prefix():
            with torch.no_grad():
                value = prefix_mean(d, batch.lengths, batch.rows).exp()
            return value * (1 + (d - d.detach()))
    return None
