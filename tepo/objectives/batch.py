"""The tensors an objective works on. Flat: response tokens only, sequence after sequence, nothing padded.

N tokens, S sequences. Everything but `logprobs`, `entropies` (where the objective wants their gradient) and `full_kl`
is detached here, whatever is given: a gradient into old log-probs or advantages is no method's. Half precision,
integers and booleans become float32 here, once: sums over thousands of tokens need it, and a policy's log-probs get
their gradient back in their own dtype.

Types, shapes and devices are checked here, and no value on a device, which would wait for it; `lengths` are checked
here on a CPU, and where `advantages` and `prepare` read them anyway."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.objectives.inputs import EXPECTED, PER_TOKEN, check_given, check_lengths, missing, numbers_of
from tepo.objectives.segments import indices_of, positions_of, sequence_of


class Collectives(Protocol):
    """Collectives over the ranks of a run; None stands for one process."""

    def all_sum(self, value: Tensor) -> Tensor:
        """Elementwise sum over ranks."""
        ...

    def all_gather(self, value: Tensor) -> list[Tensor]:
        """The 1-D tensors of all ranks in rank order; lengths may differ."""
        ...


def all_sum(value: Tensor, comm: Collectives | None) -> Tensor:
    """Sum over ranks, or the value itself in a single process."""
    return value if comm is None else comm.all_sum(value)


def gather(value: Tensor, comm: Collectives | None) -> Tensor:
    """The ranks' 1-D tensors, one after the other."""
    return value if comm is None else torch.cat(comm.all_gather(value))


WITH_GRADIENT = ("logprobs", "entropies", "full_kl")


def _settle(holder: Any, names: Sequence[str]) -> None:
    """Detach the named tensors of a frozen dataclass but those with a gradient, and make what is neither float32 nor
    float64 float32."""
    for name in names:
        value = getattr(holder, name)
        if value is None:
            continue
        settled = value if name in WITH_GRADIENT else value.detach()
        if settled.dtype not in (torch.float32, torch.float64):
            settled = settled.float()
        object.__setattr__(holder, name, settled)


class _Flat:
    """Places of the tokens of S sequences, one after the other."""

    lengths: Tensor

    @cached_property
    def counts(self) -> list[int]:
        """`lengths` on the host, which the device is asked for once."""
        return self.lengths.tolist()

    @property
    def tokens(self) -> int:
        """N."""
        return sum(self.counts)

    @cached_property
    def sequence(self) -> Tensor:
        """Index of each token's sequence, int64 [N]."""
        return sequence_of(self.lengths, self.tokens)

    @cached_property
    def positions(self) -> Tensor:
        """Place of each token in its response, from 0, int64 [N]."""
        return positions_of(self.lengths, self.sequence)


@dataclass(frozen=True)
class Groups(_Flat):
    """A graded rollout: what advantages are made of."""

    rewards: Tensor  # float, integer or bool [S]; what is not finite counts as NaN
    group_ids: Tensor  # integer [S], equal for the responses of one prompt
    lengths: Tensor  # int64 [S], response tokens
    old_entropies: Tensor | None = None  # float [N], nats, of the policy that sampled (gtpo*, grpo_s*)
    finished: Tensor | None = None  # bool [S], False when cut at the length limit
    max_new_tokens: int | None = None  # that limit, for length penalties
    named: Tensor | None = None  # float [S, K]: rewards whose mean by `weights` `rewards` are (GDPO)
    weights: Sequence[float] = ()  # K numbers

    def __post_init__(self) -> None:
        check_given(self)
        if self.lengths.is_cpu:
            check_lengths(self, self.lengths.tolist())
        if self.named is not None and self.named.shape != (wanted := (self.lengths.shape[0], len(self.weights))):
            what = f"`named` has the shape {list(self.named.shape)}; expected: {list(wanted)}, a column for each weight"
            raise UserError(what, where="Groups.named")
        _settle(self, ("rewards", "old_entropies"))
        rewards = torch.where(self.rewards.isfinite(), self.rewards, torch.nan)
        object.__setattr__(self, "rewards", rewards)  # a mean of -inf would pass for a group without a success


@dataclass(frozen=True)
class TokenBatch(_Flat):
    """A mini-batch or a micro-batch: float [N], but where it says otherwise. What a row wants is `objective.needs`."""

    old_logprobs: Tensor
    advantages: Tensor
    lengths: Tensor  # int64 [S]
    logprobs: Tensor | None = None  # with gradient; None in the batch given to `prepare` unless `needs.prepass`
    entropies: Tensor | None = None  # nats, full vocabulary
    old_entropies: Tensor | None = None
    initial_logprobs: Tensor | None = None
    sampler_logprobs: Tensor | None = None  # as reported by the sampler
    full_kl: Tensor | None = None  # with gradient: KL(pi || anchor) over the vocabulary
    uid: Tensor | None = None  # int64 [S], unique and stable for each sequence: random draws are functions of it
    group_ids: Tensor | None = None  # integer [S]
    finished: Tensor | None = None  # bool [S]
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        check_given(self, "advantages")
        if self.lengths.is_cpu:
            check_lengths(self, self.lengths.tolist(), "advantages")
        _settle(self, PER_TOKEN)

    @property
    def tokens(self) -> int:
        """N, by the advantages: no device is asked."""
        return self.advantages.shape[0]

    def want(self, name: str, why: str) -> Tensor:
        """An optional tensor that is needed now. Raises UserError when it was not given."""
        value = getattr(self, name)
        if value is None:
            raise missing(self, name, why)
        return value

    def select(self, sequences: Sequence[int] | Tensor) -> "TokenBatch":
        """The batch of the given sequences (indices [K] into this one, or bool [S]), in that order. Raises UserError
        for others."""
        chosen, indices = indices_of(self.lengths, self.counts, numbers_of(sequences, len(self.counts), self))
        picked: dict[str, Any] = {}
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, Tensor):
                picked[part.name] = value[chosen if EXPECTED[part.name].per == "response" else indices]
        return replace(self, **picked)
