"""Surrogate axis: the gain J of each token (to be maximised) from its ratio, advantage and log-prob."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tepo.objectives.batch import TokenBatch
from tepo.objectives.options import option
from tepo.objectives.segments import sequence_mean


@dataclass(frozen=True)
class PpoClip:
    """min(w A, clip(w, 1-low, 1+high) A); with `dual`, at least dual*A where A < 0.

    PPO 1707.06347 Eq. 7; clip-higher: DAPO 3.1.
    """

    low: float = option(0.2, "lower clip distance", source="PPO 6.1", low=0)
    high: float = option(0.2, "upper clip distance", source="PPO 6.1", low=0)
    dual: float | None = option(
        None,
        "bound on the ratio where A < 0 (dual clip, 1912.09729)",
        source="off in the code base that TEPO's averages point to",
        low=1,
    )


@dataclass(frozen=True)
class PaperClip:
    """min(w, clip(w, 1-low, 1+high)) A: TEPO Eq. 4 to the letter (reading A1).

    Bounds w from above whatever the sign of A.
    """

    low: float = option(0.2, "lower clip distance (never active)", source="TEPO 4.1", low=0)
    high: float = option(0.28, "upper clip distance", source="TEPO 4.1", low=0)


@dataclass(frozen=True)
class Unclipped:
    """w A: no clip at all, as KL-Cov's code."""


@dataclass(frozen=True)
class LogProb:
    """log pi A: REINFORCE, GPG, RLOO. Takes no ratio."""


@dataclass(frozen=True)
class Cispo:
    """sg[clip(w)] A log pi: a clipped weight, and a gradient for every token. MiniMax-M1 2506.13585 Eq. 4-5."""

    low: float | None = option(
        None, "lower clip distance; none: no lower bound", source="MiniMax-M1: 'set to a large value'", low=0
    )
    high: float = option(
        0.28,
        "upper clip distance (verl's convention; TRL's absolute cap 5.0 is 4.0 here)",
        source="the paper prints none: DAPO's clip-higher",
        low=0,
    )


@dataclass(frozen=True)
class Sapo:
    """A 4/tau sigmoid(tau (w - 1)): a soft gate in place of the clip. SAPO 2511.20347."""

    tau_positive: float = option(1.0, "temperature where A > 0", source="SAPO; verl", low=1e-6)
    tau_negative: float = option(1.05, "temperature where A <= 0", source="SAPO; verl", low=1e-6)


@dataclass(frozen=True)
class GeometricClip:
    """A exp(mean of the token log-ratios, each clipped on the side where it helps A). GMPO 2507.20673."""

    low: float = option(0.4, "lower bound of a log-ratio", source="GMPO: the range (e^-0.4, e^0.4)", low=0)
    high: float = option(0.4, "upper bound of a log-ratio", source="GMPO: the range (e^-0.4, e^0.4)", low=0)


KINDS = {
    "ppo_clip": PpoClip,
    "paper_clip": PaperClip,
    "unclipped": Unclipped,
    "log_prob": LogProb,
    "cispo": Cispo,
    "sapo": Sapo,
    "geometric_clip": GeometricClip,
}
Surrogate = PpoClip | PaperClip | Unclipped | LogProb | Cispo | Sapo | GeometricClip


class Gain(NamedTuple):
    """Per token [N]: the gain with its gradient, where a clip acts (None: cannot), and where the dual clip does."""

    value: Tensor
    clipped: Tensor | None = None
    clipped_lower: Tensor | None = None


def gain(
    options: Surrogate, ratio: Tensor | None, d: Tensor, logprobs: Tensor, advantages: Tensor, batch: TokenBatch
) -> Gain:
    """The gain of each token. ratio: [N], None only for `log_prob`; d: log-ratios [N]; logprobs, advantages: [N]."""
    if isinstance(options, LogProb):
        return Gain(logprobs * advantages)
    if isinstance(options, GeometricClip):
        held = torch.where(advantages > 0, d.clamp(max=options.high), d.clamp(min=-options.low))
        return Gain(sequence_mean(held, batch.lengths, batch.rows).exp() * advantages, held.detach() != d.detach())
    assert ratio is not None
    match options:
        case PpoClip():
            return _ppo_clip(options, ratio, advantages)
        case PaperClip(low=low, high=high):
            return Gain(torch.minimum(ratio, ratio.clamp(1 - low, 1 + high)) * advantages, ratio.detach() > 1 + high)
        case Cispo(low=low, high=high):
            weight = ratio.detach()
            held = weight.clamp(None if low is None else 1 - low, 1 + high)
            return Gain(held * advantages * logprobs, held != weight)
        case Sapo(tau_positive=positive, tau_negative=negative):
            tau = torch.full_like(ratio, negative).masked_fill(advantages > 0, positive)
            return Gain(advantages * torch.sigmoid(tau * (ratio - 1)) * (4 / tau))
    return Gain(ratio * advantages)


def _ppo_clip(options: PpoClip, ratio: Tensor, advantages: Tensor) -> Gain:
    plain = ratio * advantages
    held = ratio.clamp(1 - options.low, 1 + options.high) * advantages
    value = torch.minimum(plain, held)
    clipped = held.detach() < plain.detach()
    if options.dual is None:
        return Gain(value, clipped)
    bound = options.dual * advantages
    lower = (advantages < 0) & (value.detach() < bound)
    return Gain(torch.where(lower, bound, value), clipped, lower)
