"""Correction axis: weights for the gap between the sampler's log-probs and the trainer's, both of the old policy."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tepo.objectives.batch import TokenBatch
from tepo.objectives.kind import Kind, Line, Needs, Part
from tepo.objectives.segments import segment_sum
from tepo.objectives.terms import LOG_RATIO_BOUND, finite_logprobs, log_ratio
from tepo.strict import option


class Correction(Kind, Protocol):
    """A detached factor on each token's policy term."""

    def weights(self, batch: TokenBatch) -> Tensor | None:
        """Weight of each token [N], detached; None: 1 for all."""


@dataclass(frozen=True)
class NoCorrection:
    """The gap is logged, not corrected (TEPO's likely code base does so too)."""

    needs = Needs()
    explained = Part()

    def weights(self, batch: TokenBatch) -> None:
        return None


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
    needs = Needs(sampler_logprobs=True)

    def weights(self, batch: TokenBatch) -> Tensor:
        gap = log_ratio(
            finite_logprobs(batch.old_logprobs),
            finite_logprobs(batch.want("sampler_logprobs", "correction.kind: truncated")),
        )
        if self.level == "sequence":
            gap = segment_sum(gap, batch.lengths).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).to(gap.dtype)[batch.rows]
        return gap.exp().clamp(max=self.cap)

    @property
    def explained(self) -> Part:
        what = (
            "pi_old / pi_sampler of the token"
            if self.level == "token"
            else "product of pi_old / pi_sampler over the response"
        )
        meaning = Line(
            f"v_t = min({what}, {self.cap:g})",
            r"v_{i,t} = \min\Big(\prod \frac{\pi_{\mathrm{old}}}{\pi_{\mathrm{sampler}}}, " rf"{self.cap:g}\Big)",
        )
        return Part(Line("v_t ", r"v_{i,t}\, "), (meaning,), ("v_t",), zero="; v_t never is")


KINDS: dict[str, type[Correction]] = {"none": NoCorrection, "truncated": Truncated}
