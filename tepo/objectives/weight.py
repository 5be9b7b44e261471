"""Weight axis: a detached factor on each token's policy term."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tepo.errors import UserError
from tepo.objectives.batch import Comm, TokenBatch
from tepo.objectives.moments import largest
from tepo.objectives.options import option
from tepo.objectives.selection import covariance, draws, token_count, top_tokens

SCOPES = ("mini_batch", "micro_batch")
SCOPE_MEANING = "over the mini-batch and all ranks, or micro_batch as verl does (comparison only: depends on the split)"


@dataclass(frozen=True)
class Uniform:
    """Every token alike."""


@dataclass(frozen=True)
class ClipCov:
    """0 on randomly drawn tokens of high covariance that the clip left alone, 1 elsewhere. Cui et al. 2505.22617."""

    fraction: float = option(
        2e-4, "tokens to draw, as a share of all; at least one", source="Cui et al. 4.3; TEPO 4.1", low=0, high=1
    )
    low: float = option(1.0, "smallest covariance of a candidate", source="Cui et al. 4.3")
    high: float = option(5.0, "largest covariance of a candidate", source="Cui et al. 4.3")
    scope: str = option("mini_batch", SCOPE_MEANING, source="the paper's definition", choices=SCOPES)

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise UserError(
                f"weight.low {self.low:g} and weight.high {self.high:g} leave no token to draw",
                where="clip_cov",
                fix="low below high (Cui et al.: 1 and 5)",
            )


@dataclass(frozen=True)
class Steer:
    """A weight that falls with the size of a token's estimated entropy change Omega.

    STEER 2510.10150 (TEPO's 'STEEL').
    """

    form: str = option(
        "code",
        "code: A/pi_old pi (1-pi) (log pi + H); theorem: I_clip r A pi (1-pi) (log pi + H); H of the old policy",
        source="STEER's released code",
        choices=("code", "theorem"),
    )
    shape: str = option(
        "exponential",
        "exp(-k |Omega|), floor at the largest |Omega|; or linear from ceiling to floor",
        source="run_exp.sh",
        choices=("exponential", "linear"),
    )
    floor: float = option(0.8, "smallest weight", source="run_exp.sh and run_linear.sh (token_weight_min)", low=1e-6)
    ceiling: float = option(1.0, "largest weight (1.2 in run_linear.sh)", source="run_exp.sh", low=1e-6)
    scale_floor: float = option(
        0.02,
        "exponential: the largest |Omega| counts as at least this",
        source="released code only; 0 is the paper's form",
        low=0,
    )
    scope: str = option("mini_batch", SCOPE_MEANING, source="like every statistic here", choices=SCOPES)

    def __post_init__(self) -> None:
        if self.floor > self.ceiling:
            raise UserError(
                f"weight.floor {self.floor:g} is above weight.ceiling {self.ceiling:g}",
                where="steer",
                fix="the other way round: the largest |Omega| gets the floor",
            )
        if self.shape == "exponential" and self.ceiling > 1:
            raise UserError(
                f"weight.ceiling {self.ceiling:g} is never reached: the exponential starts at 1",
                where="steer",
                fix="weight.shape=linear, or a ceiling of at most 1",
            )


KINDS = {"uniform": Uniform, "clip_cov": ClipCov, "steer": Steer}
Weight = Uniform | ClipCov | Steer


def token_weights(
    options: ClipCov | Steer, batch: TokenBatch, logprobs: Tensor, clipped: Tensor | None, comm: Comm | None, salt: int
) -> Tensor:
    """Weight of each token [N], detached.

    logprobs: current, finite [N]; clipped: where the surrogate's clip acts [N].
    """
    if isinstance(options, ClipCov):
        scores = covariance(logprobs, batch.advantages, comm)
        candidate = (scores > options.low) & (scores < options.high)
        if clipped is not None:
            candidate &= ~clipped
        number = draws(batch, salt)
        drop = max(int(options.fraction * token_count(batch, comm)), 1)
        dropped = top_tokens(torch.where(candidate, -number, -torch.inf), number, drop, comm)
        return 1 - dropped.to(batch.advantages.dtype)
    size = entropy_change_estimate(options.form, batch, logprobs, clipped).abs()
    top, bottom = largest(size, comm), -largest(-size, comm)
    if options.shape == "exponential":
        weights = torch.exp(size * math.log(options.floor) / top.clamp(min=max(options.scale_floor, 1e-300)))
        weights = weights.clamp(options.floor, options.ceiling)
    else:
        place = torch.where(top > bottom, (size - bottom) / (top - bottom), 0.5)
        weights = options.ceiling + (options.floor - options.ceiling) * place
    return weights.to(batch.advantages.dtype)


def entropy_change_estimate(form: str, batch: TokenBatch, logprobs: Tensor, clipped: Tensor | None) -> Tensor:
    """Omega of each token, float64 [N]: STEER's first-order estimate of what the update does to the entropy."""
    current, old = logprobs.double(), batch.old_logprobs.double().clamp(min=math.log(1e-8))
    current = current.exp().clamp(1e-8, 1 - 1e-8).log()
    entropies = batch.want("old_entropies", "weight.kind: steer").double()
    omega = batch.advantages.double() * (current - old).exp() * -torch.expm1(current) * (current + entropies)
    if form == "theorem":
        omega = omega * current.exp()
        omega = torch.where(clipped, 0.0, omega) if clipped is not None else omega
    return omega
