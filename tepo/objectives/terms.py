"""Inputs of a surrogate, a weight and a penalty, and the result of a surrogate."""

from typing import NamedTuple

from torch import Tensor

from tepo.objectives.batch import TokenBatch

LOG_RATIO_BOUND = 20.0  # verl core_algos.py: log-ratios are clamped to +-20 before exp, with no gradient outside
LOGPROB_FLOOR = -1e5  # stands for log 0 (a token off the policy's support): finite, and without gradient


class Terms(NamedTuple):
    """Per token [N] of `batch`. logprobs: current and finite, with their gradient. d: log-ratio to the old policy.
    importance: the ratio of the row's axis, None without one. advantages: of the batch, with what the current policy
    adds to them (detached)."""

    batch: TokenBatch
    logprobs: Tensor
    d: Tensor
    importance: Tensor | None
    advantages: Tensor

    @property
    def ratio(self) -> Tensor:
        """The importance ratio [N], for a surrogate that takes one."""
        assert self.importance is not None, "this surrogate takes a ratio, and the row has none"
        return self.importance


class Gain(NamedTuple):
    """Per token [N]: the gain with its gradient, where a clip acts (None: cannot), where the dual clip does, and the
    tokens that verl counts as clipped, above and below, where these are others than those that the clip acts on."""

    value: Tensor
    clipped: Tensor | None = None
    clipped_lower: Tensor | None = None
    counted: tuple[Tensor, Tensor] | None = None


def finite_logprobs(logprobs: Tensor) -> Tensor:
    """Log-probs with -inf replaced by a finite floor (no gradient there). NaN stays NaN, to be caught by the
    trainer."""
    return logprobs.clamp(min=LOGPROB_FLOOR)


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """d [N], clamped to +-LOG_RATIO_BOUND; both arguments through `finite_logprobs`."""
    return (logprobs - old_logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def sampler_gap(batch: TokenBatch, why: str) -> Tensor:
    """log pi_old - log pi_sampler of each token [N], clamped. why: who asks, for the error where it is not given."""
    return log_ratio(finite_logprobs(batch.old_logprobs), finite_logprobs(batch.want("sampler_logprobs", why)))
