"""The tensors an objective works on. Flat: response tokens only, sequence after sequence, nothing padded.

N tokens, S sequences. Everything but `logprobs`, `entropies` (where the objective wants their gradient) and `full_kl`
is detached here, whatever is given: a gradient into old log-probs or advantages is no method's. Half precision,
integers and booleans become float32 here, once: sums over thousands of tokens need it, and a policy's log-probs get
their gradient back in their own dtype.

Types, shapes and devices are checked here, and no value on a device, which would wait for it; `lengths` are checked
here on a CPU, and where `advantages` and `prepare` read them anyway."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Integral
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from tepo.common.errors import UserError

WITH_GRADIENT = ("logprobs", "entropies", "full_kl")
PER_TOKEN = (
    *("old_logprobs", "advantages", "logprobs", "entropies", "old_entropies"),
    *("initial_logprobs", "teacher_logprobs", "sampler_logprobs", "full_kl"),
)
EXPECTED = {  # dtype (float: integers and booleans count too), and what there is one of for each
    "lengths": ("int64", "response"),
    "uid": ("int64", "response"),
    "group_ids": ("integer", "response"),
    "finished": ("bool", "response"),
    "rewards": ("float", "response"),
    "values": ("float", "response"),
    **dict.fromkeys(PER_TOKEN, ("float", "token")),
}


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


def largest(values: Tensor, comm: Collectives | None) -> Tensor:
    """The largest of values [K] over all ranks; -inf where there is none."""
    own_largest = values.max() if values.shape[0] else values.new_tensor(-torch.inf)
    return gather(own_largest.reshape(1), comm).max()


class Flat:
    """Places of the tokens of S sequences, one after the other."""

    lengths: Tensor
    sized: ClassVar[str] = ""  # the field whose size is N

    @cached_property
    def counts(self) -> list[int]:
        """`lengths` on the host, which the device is asked for once. Raises UserError for a negative one, and where
        they do not add up to N."""
        counts = self.lengths.tolist()
        if negative := [place for place, count in enumerate(counts) if count < 0]:
            fault = f"is {counts[negative[0]]} for response {negative[0]}"
            raise self._wrong("lengths", fault, "response tokens of each response, 0 or more")
        sized = getattr(self, self.sized, None)
        if sized is not None and sized.shape[0] != sum(counts):
            fault = f"has the shape [{sized.shape[0]}], and the lengths add up to {sum(counts)}"
            raise self._wrong(self.sized, fault, _expected(self.sized, {"token": sum(counts)}))
        return counts

    @property
    def tokens(self) -> int:
        """N."""
        return sum(self.counts)

    @cached_property
    def starts(self) -> Tensor:
        """Index of the first token of each sequence, int64 [S]."""
        return self.lengths.cumsum(0) - self.lengths

    @cached_property
    def sequence(self) -> Tensor:
        """Index of each token's sequence, int64 [N]."""
        every = torch.arange(self.lengths.shape[0], device=self.lengths.device)
        return torch.repeat_interleave(every, self.lengths, output_size=self.tokens)  # so that no device is asked

    @cached_property
    def positions(self) -> Tensor:
        """Place of each token in its response, from 0, int64 [N]."""
        return torch.arange(self.sequence.shape[0], device=self.sequence.device) - self.starts[self.sequence]

    def places(self, sequences: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """The chosen sequences (numbers, or bool [S]) as numbers [K], and the indices of their tokens, in that order.
        Raises UserError for a mask of another size and for a number that there is not."""
        numbers: list[Any] = sequences.tolist() if isinstance(sequences, Tensor) else list(sequences)
        where, size = f"{type(self).__name__}.select", len(self.counts)
        if numbers and all(isinstance(choice, bool) for choice in numbers):
            if len(numbers) != size:
                raise UserError(f"a mask of {len(numbers)} responses for a batch of {size}", where=where)
            numbers = [number for number, chosen in enumerate(numbers) if chosen]
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, Integral) or not -size <= int(number) < size:
                fix = "whole numbers from 0, or a mask: one bool a response"
                raise UserError(f"there is no response {number!r} in a batch of {size}", where=where, fix=fix)
        chosen = torch.tensor(numbers, dtype=torch.int64).to(self.lengths.device, non_blocking=True)
        lengths, total = self.lengths[chosen], sum(self.counts[number] for number in numbers)
        shift = self.starts[chosen] - (lengths.cumsum(0) - lengths)
        shifts = torch.repeat_interleave(shift, lengths, output_size=total)
        return chosen, torch.arange(total, device=self.lengths.device) + shifts

    def check_has(self, names: Iterable[str], reader: str) -> None:
        """Raises UserError for the first of these that was not given."""
        for name in names:
            if getattr(self, name) is None:
                sizes = {"response": int(self.lengths.shape[0])}
                expectation = "a whole number of tokens" if name == "max_new_tokens" else _expected(name, sizes)
                fix = f"give {type(self).__name__}({name}=…); `objective.needs` names all that a row reads"
                raise UserError(f"{reader} reads `{name}`, which is not given; expected: {expectation}", fix=fix)

    def _settle(self) -> None:
        """Raise UserError for a tensor of another type, dtype, shape or device than is expected. Detach the others but
        those with a gradient, and make what is neither float32 nor float64 float32."""
        sizes: dict[str, int] = {}
        first = ("lengths", "advantages")  # they say how many responses and tokens there are
        for name in dict.fromkeys((*first, *EXPECTED)):
            value: Any = getattr(self, name, None)
            if value is None and name != "lengths":
                continue
            dtype, per = EXPECTED[name]
            self._check(name, value, dtype, sizes)
            if name in first:
                sizes[per] = int(value.shape[0])
            if dtype == "float":
                settled = value if name in WITH_GRADIENT else value.detach()
                wide = settled.dtype in (torch.float32, torch.float64)
                object.__setattr__(self, name, settled if wide else settled.float())
        limit = getattr(self, "max_new_tokens", None)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise self._wrong("max_new_tokens", f"is {limit!r}", "a whole number of tokens, at least 1")
        if self.lengths.is_cpu:
            _ = self.counts

    def _check(self, name: str, value: Any, dtype: str, sizes: Mapping[str, int]) -> None:
        expectation, per = _expected(name, sizes), EXPECTED[name][1]
        if not isinstance(value, Tensor):
            raise self._wrong(name, f"is no tensor but {type(value).__name__}", expectation)
        matches = {
            "float": not value.dtype.is_complex,
            "integer": not (value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool),
            "int64": value.dtype == torch.int64,
            "bool": value.dtype == torch.bool,
        }
        if not matches[dtype]:
            raise self._wrong(name, f"is {str(value.dtype).removeprefix('torch.')}", expectation)
        if value.dim() != 1 or value.shape[0] != sizes.get(per, value.shape[0]):
            padded = value.dim() == 2 and per == "token"
            fix = "take the response tokens of a padded tensor: values[mask]" if padded else ""
            raise self._wrong(name, f"has the shape {list(value.shape)}", expectation, fix)
        if value.device != self.lengths.device:
            fault = f"is on {value.device}, and `lengths` on {self.lengths.device}"
            raise self._wrong(name, fault, "all tensors on one device", f"{name}=values.to(lengths.device)")

    def _wrong(self, name: str, fault: str, expectation: str, fix: str = "") -> UserError:
        return UserError(f"`{name}` {fault}; expected: {expectation}", where=f"{type(self).__name__}.{name}", fix=fix)


def _expected(name: str, sizes: Mapping[str, int]) -> str:
    """In words: `float [N] = [24], one per response token`."""
    dtype, per = EXPECTED[name]
    letter, what = ("N", "response token") if per == "token" else ("S", "response")
    return f"{dtype} [{letter}]" + (f" = [{sizes[per]}]" if per in sizes else "") + f", one per {what}"


@dataclass(frozen=True)
class Groups(Flat):
    """A graded rollout: what advantages are made of."""

    rewards: Tensor  # float, integer or bool [S]; what is not finite counts as NaN
    group_ids: Tensor  # integer [S], equal for the responses of one prompt
    lengths: Tensor  # int64 [S], response tokens
    old_entropies: Tensor | None = None  # float [N], nats, of the policy that sampled (gtpo*, grpo_s*)
    finished: Tensor | None = None  # bool [S], False when cut at the length limit
    max_new_tokens: int | None = None  # that limit, for length penalties
    named: Tensor | None = None  # float [S, K]: rewards whose mean by `weights` `rewards` are (GDPO)
    weights: Sequence[float] = ()  # K numbers
    values: Tensor | None = None  # float [S], of each prompt before this rollout (SPO)
    sized = "old_entropies"

    def __post_init__(self) -> None:
        self._settle()
        if self.named is not None and self.named.shape != (shape := (self.lengths.shape[0], len(self.weights))):
            what = f"`named` has the shape {list(self.named.shape)}; expected: {list(shape)}, a column for each weight"
            raise UserError(what, where="Groups.named")
        rewards = torch.where(self.rewards.isfinite(), self.rewards, torch.nan)
        object.__setattr__(self, "rewards", rewards)  # a mean of -inf would pass for a group without a success


@dataclass(frozen=True)
class TokenBatch(Flat):
    """A mini-batch or a micro-batch: float [N], but where it says otherwise. What a row wants is `objective.needs`."""

    old_logprobs: Tensor
    advantages: Tensor
    lengths: Tensor  # int64 [S]
    logprobs: Tensor | None = None  # with gradient; None in the batch given to `prepare` unless `needs.prepass`
    entropies: Tensor | None = None  # nats, full vocabulary
    old_entropies: Tensor | None = None
    initial_logprobs: Tensor | None = None
    teacher_logprobs: Tensor | None = None
    sampler_logprobs: Tensor | None = None  # as reported by the sampler
    full_kl: Tensor | None = None  # with gradient: KL(pi || anchor) over the vocabulary
    uid: Tensor | None = None  # int64 [S], unique and stable for each sequence: random draws are functions of it
    group_ids: Tensor | None = None  # integer [S]
    finished: Tensor | None = None  # bool [S]
    max_new_tokens: int | None = None
    sized = "advantages"

    def __post_init__(self) -> None:
        self._settle()

    @property
    def tokens(self) -> int:
        """N, by the advantages: no device is asked."""
        return self.advantages.shape[0]

    def select(self, sequences: Sequence[int] | Tensor) -> "TokenBatch":
        """The batch of the given sequences (indices [K] into this one, or bool [S]), in that order. Raises UserError
        for others."""
        chosen, indices = self.places(sequences)
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        picked: dict[str, Any] = {
            name: value[chosen if EXPECTED[name][1] == "response" else indices]
            for name, value in values.items()
            if isinstance(value, Tensor)
        }
        return replace(self, **picked)
