"""Penalty axis: terms beside the policy term, on all tokens or on a mask."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tepo.objectives.batch import TokenBatch
from tepo.objectives.options import option

POSITIVE_FALLING, NEGATIVE_RISING, EITHER = "positive_advantage_falling_entropy", "negative_advantage_rising_entropy", "either"
MASKED = (POSITIVE_FALLING, NEGATIVE_RISING, EITHER)


@dataclass(frozen=True)
class Kl:
    """beta * KL(pi || anchor) on a token mask. TEPO Eq. 4."""

    coefficient: float = option(0.001, "beta", source="TEPO 4.1 (Qwen2.5-7B)")
    estimator: str = option("k3", "of the token's KL", source="GRPO Eq. 4, the default of verl and TRL (reading A3)", choices=("k1", "k2", "k3", "abs", "r_k3", "full"))
    anchor: str = option("old", "old: the policy that sampled; initial: before training", source="TEPO Eq. 4", choices=("old", "initial"))
    tokens: str = option("all", "where it acts", source="TEPO Eq. 4", choices=("all", *MASKED))
    entropy_change: str = option("measured", "how the sign of the entropy change is found", source="TEPO C.2 (reading A2)", choices=("measured",))
    tolerance: float = option(1e-6, "entropy changes up to this count as none", source="float32 rounding (reading A2)", low=0)


KINDS = {"kl": Kl}
Penalty = Kl


def kl_estimate(estimator: str, d: Tensor, ratio: Tensor | None = None) -> Tensor:
    """Per-token estimate [N] of KL(pi || anchor) from d = log pi - log anchor at the sampled token (Schulman's k1, k2, k3)."""
    match estimator:
        case "k1":
            return d
        case "k2":
            return 0.5 * d * d
        case "k3":
            return torch.expm1(-d) + d
        case "abs":
            return d.abs()
    assert ratio is not None
    return ratio * (torch.expm1(-d) + d)


def changed_tokens(tokens: str, change: Tensor, advantages: Tensor, tolerance: float) -> Tensor:
    """The mask M of TEPO Eq. 4 and its two variants (Table 3 Panel E): bool [N] from the entropy change and advantage of each token."""
    falling = (advantages > 0) & (change < -tolerance)
    if tokens == POSITIVE_FALLING:
        return falling
    rising = (advantages < 0) & (change > tolerance)
    return rising if tokens == NEGATIVE_RISING else falling | rising


def measured_change(batch: TokenBatch) -> Tensor:
    """H(pi) - H(pi_old) at each token, full vocabulary, detached [N]."""
    entropies = batch.want("entropies", "penalty.tokens with a measured entropy change")
    return entropies.detach() - batch.want("old_entropies", "penalty.tokens with a measured entropy change")
