"""Inputs of an objective: dtype and shape of each tensor, and the message where one is missing or is another."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tepo.common.errors import UserError


class Expected(NamedTuple):
    """A tensor of one dimension."""

    dtype: str  # float (integers and booleans count), integer, int64 or bool
    per: str  # token or response

    def shown(self, sizes: Mapping[str, int | None]) -> str:
        """In words: `float [N] = [24], one a response token`."""
        letter, what = ("N", "response token") if self.per == "token" else ("S", "response")
        size = sizes.get(self.per)
        return f"{self.dtype} [{letter}]" + ("" if size is None else f" = [{size}]") + f", one a {what}"


_FLOATS = ("old_logprobs", "advantages", "logprobs", "entropies", "old_entropies")
PER_TOKEN = (*_FLOATS, "initial_logprobs", "sampler_logprobs", "full_kl")
EXPECTED = {
    "lengths": Expected("int64", "response"),
    "uid": Expected("int64", "response"),
    "group_ids": Expected("integer", "response"),
    "finished": Expected("bool", "response"),
    "rewards": Expected("float", "response"),
    **{name: Expected("float", "token") for name in PER_TOKEN},
}
LIMIT = "max_new_tokens"


def check_given(holder: Any, tokens: str = "") -> None:
    """Raises UserError, naming the tensor, what is expected and what was given, for one of `Groups` or `TokenBatch`
    with another type, dtype, shape or device. tokens: the tensor that says how many tokens there are. Asks for no
    value, so that no device is waited for."""
    sizes: dict[str, int | None] = {"response": None, "token": None}
    for name, per in (("lengths", "response"), (tokens, "token")):
        if name:
            _check(holder, name, sizes)
            sizes[per] = int(getattr(holder, name).shape[0])
    for name in EXPECTED:
        if getattr(holder, name, None) is not None:
            _check(holder, name, sizes)
    limit = holder.max_new_tokens
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise _wrong(holder, LIMIT, f"is {limit!r}", "a whole number of tokens, at least 1")


def _check(holder: Any, name: str, sizes: Mapping[str, int | None]) -> None:
    value, expected = getattr(holder, name), EXPECTED[name]
    wanted = expected.shown(sizes)
    if not isinstance(value, Tensor):
        raise _wrong(holder, name, f"is no tensor but {type(value).__name__}", wanted)
    taken = {
        "float": not value.dtype.is_complex,
        "integer": not (value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool),
        "int64": value.dtype == torch.int64,
        "bool": value.dtype == torch.bool,
    }
    if not taken[expected.dtype]:
        raise _wrong(holder, name, f"is {str(value.dtype).removeprefix('torch.')}", wanted)
    if value.dim() != 1 or sizes[expected.per] not in (None, value.shape[0]):
        padded = value.dim() == 2 and expected.per == "token"
        fix = "take the response tokens of a padded tensor: values[mask]" if padded else ""
        raise _wrong(holder, name, f"has the shape {list(value.shape)}", wanted, fix)
    if value.device != holder.lengths.device:
        given = f"is on {value.device}, and `lengths` on {holder.lengths.device}"
        raise _wrong(holder, name, given, "all tensors on one device", f"{name}=values.to(lengths.device)")


def _wrong(holder: Any, name: str, given: str, wanted: str, fix: str = "") -> UserError:
    return UserError(f"`{name}` {given}; expected: {wanted}", where=f"{type(holder).__name__}.{name}", fix=fix)


def check_lengths(holder: Any, counts: Sequence[int], name: str = "") -> None:
    """Raises UserError for a negative length, and where lengths do not add up to the tokens of the tensor `name`.
    counts: the lengths on the host."""
    negative = [place for place, count in enumerate(counts) if count < 0]
    if negative:
        given = f"is {counts[negative[0]]} for response {negative[0]}"
        raise _wrong(holder, "lengths", given, "response tokens of each response, 0 or more")
    size, counted = getattr(holder, name).shape[0] if name else 0, sum(counts)
    if name and size != counted:
        given = f"has the shape [{size}], and the lengths add up to {counted}"
        raise _wrong(holder, name, given, EXPECTED[name].shown({"token": counted}))


def numbers_of(sequences: Sequence[int] | Tensor, size: int, holder: Any) -> list[int]:
    """The numbers of chosen responses out of `size`, from numbers or from a mask. Raises UserError for a mask of
    another size and for a number that there is not."""
    given: list[Any] = sequences.tolist() if isinstance(sequences, Tensor) else list(sequences)
    where = f"{type(holder).__name__}.select"
    if given and all(isinstance(choice, bool) for choice in given):
        if len(given) != size:
            raise UserError(f"a mask of {len(given)} responses for a batch of {size}", where=where)
        return [number for number, chosen in enumerate(given) if chosen]
    for number in given:
        whole = isinstance(number, Integral) and not isinstance(number, bool)
        if not whole or not -size <= int(number) < size:
            fix = "whole numbers from 0, or a mask: one bool a response"
            raise UserError(f"there is no response {number!r} in a batch of {size}", where=where, fix=fix)
    return [int(number) for number in given]


def missing(holder: Any, name: str, reader: str) -> UserError:
    """The error for something that is needed now and was not given."""
    sizes = {"response": int(holder.lengths.shape[0])}
    wanted = "a whole number of tokens" if name == LIMIT else EXPECTED[name].shown(sizes)
    fix = f"give {type(holder).__name__}({name}=…); `objective.needs` names all that a row reads"
    return UserError(f"{reader} reads `{name}`, which is not given; expected: {wanted}", fix=fix)


def check_has(holder: Any, names: Iterable[str], reader: str) -> None:
    """Raises UserError for the first of these that was not given."""
    for name in names:
        if getattr(holder, name) is None:
            raise missing(holder, name, reader)
