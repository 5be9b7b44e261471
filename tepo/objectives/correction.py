"""Correction axis: weights for the gap between the sampler's log-probs and the trainer's, both of the old policy."""

from dataclasses import dataclass

from torch import Tensor

from tepo.objectives.batch import TokenBatch
from tepo.objectives.options import option
from tepo.objectives.ratio import LOG_RATIO_BOUND, finite_logprobs, log_ratio
from tepo.objectives.segments import segment_sum


@dataclass(frozen=True)
class NoCorrection:
    """The gap is logged, not corrected (TEPO's likely code base does so too)."""


@dataclass(frozen=True)
class Truncated:
    """min(pi_old trainer / pi_old sampler, cap) on the policy term, after clipping:
    truncated importance sampling (TIS)."""

    level: str = option(
        "token",
        "of the ratio: each token's, or the product over the response",
        source="like-for-like with token losses",
        choices=("token", "sequence"),
    )
    cap: float = option(2.0, "largest weight", source="verl rollout_is_threshold", low=1e-6)


KINDS = {"none": NoCorrection, "truncated": Truncated}
Correction = NoCorrection | Truncated


def correction_weights(options: Truncated, batch: TokenBatch) -> Tensor:
    """Weight of each token [N], detached."""
    gap = log_ratio(
        finite_logprobs(batch.old_logprobs),
        finite_logprobs(batch.want("sampler_logprobs", "correction.kind: truncated")),
    )
    if options.level == "sequence":
        gap = segment_sum(gap, batch.lengths).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).to(gap.dtype)[batch.rows]
    return gap.exp().clamp(max=options.cap)
