"""Stateless randomness: every draw is a function of what it is for, never of what ran before.

A *key* is a signed 64-bit integer. `derive` makes one from a seed, a purpose and integers; `uniform` turns tensors
of keys and counters into numbers in (0, 1) with the SplitMix64 finaliser (Steele, Lea, Flood 2014),
the same on any device.
"""

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_WEYL = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB


def derive(seed: int, purpose: str, *parts: int | str) -> int:
    """A signed 64-bit key for (seed, purpose, parts …), stable across machines and Python versions."""
    text = "\x1f".join(map(str, (seed, purpose, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _shift(value: "Tensor", bits: int) -> "Tensor":
    """Logical right shift of int64."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def mix(keys: "Tensor", counters: "Tensor | int") -> "Tensor":
    """Scramble int64 keys with int64 counters (broadcast) into int64."""
    step = (counters + 1) * _WEYL
    if isinstance(step, int):  # a Python int does not wrap by itself
        step = (step + 2**63) % 2**64 - 2**63
    z = keys + step
    z = (z ^ _shift(z, 30)) * _MIX1
    z = (z ^ _shift(z, 27)) * _MIX2
    return z ^ _shift(z, 31)


def uniform(keys: "Tensor", counters: "Tensor | int") -> "Tensor":
    """Float64 uniforms in the open interval (0, 1), one per broadcast element of keys and counters."""
    return (_shift(mix(keys, counters), 11).double() + 0.5) * 2.0**-53
