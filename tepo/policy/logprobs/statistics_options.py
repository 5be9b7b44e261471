"""Options of the per-token statistics of a policy."""

from dataclasses import dataclass

from torch import Tensor

BUDGET = 128 * 2**20  # bytes for logits: above it the vocabulary is worked through in chunks of this size


@dataclass(frozen=True, slots=True)
class StatisticsOptions:
    """temperature: of the softmax. entropy_gradient: let the gradient of the entropy flow. need_entropy: else None.
    reference: log-probs [N, V] float32 of another policy, for the exact KL to it. budget: bytes for logits."""

    temperature: float = 1.0
    entropy_gradient: bool = False
    need_entropy: bool = True
    reference: Tensor | None = None
    budget: int = BUDGET
