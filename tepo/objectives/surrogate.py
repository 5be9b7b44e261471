"""Surrogate axis: the gain J of each token (to be maximised) from its ratio, advantage and log-prob."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tepo.objectives.options import option


@dataclass(frozen=True)
class PpoClip:
    """min(w A, clip(w, 1-low, 1+high) A); with `dual`, at least dual*A where A < 0. PPO 1707.06347 Eq. 7; clip-higher: DAPO 3.1."""

    low: float = option(0.2, "lower clip distance", source="PPO section 6.1", low=0)
    high: float = option(0.2, "upper clip distance", source="PPO section 6.1", low=0)
    dual: float | None = option(None, "bound on the ratio where A < 0 (dual clip 1912.09729); none by default, as in the fork TEPO's numbers point to", low=1)


KINDS = {"ppo_clip": PpoClip}
Surrogate = PpoClip


class Gain(NamedTuple):
    """Per token: the gain with its gradient, whether the clip removed its gradient, and whether the dual clip did (or None)."""

    value: Tensor
    clipped: Tensor | None
    clipped_lower: Tensor | None


def gain(options: Surrogate, ratio: Tensor, advantages: Tensor) -> Gain:
    """The gain of each token. ratio, advantages: [N]."""
    plain = ratio * advantages
    held = ratio.clamp(1 - options.low, 1 + options.high) * advantages
    value = torch.minimum(plain, held)
    clipped = held.detach() < plain.detach()
    if options.dual is None:
        return Gain(value, clipped, None)
    bound = options.dual * advantages
    lower = (advantages < 0) & (value.detach() < bound)
    return Gain(torch.where(lower, bound, value), clipped, lower)
