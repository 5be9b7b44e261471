"""Split of problems into those that are trained on, those that choose settings, and those that judge.

The split of a prompt is a function of its text alone, so no set of one split holds a prompt of another, whatever the
seed. Settings are chosen on `validation`; `test` is measured with the settings that were chosen."""

import hashlib
from typing import Literal, get_args

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
# Of the prompt's hash in [0, 1): 80%, 5% and 15% of all prompts.
HASH_RANGES: dict[Split, tuple[float, float]] = {"train": (0.2, 1.0), "validation": (0.15, 0.2), "test": (0.0, 0.15)}
_BOUNDS = [(split, low * 2**64, high * 2**64) for split, (low, high) in HASH_RANGES.items()]


def split_of(prompt: str) -> Split:
    """The split a prompt belongs to, whatever the seed."""
    digest = hashlib.blake2b(prompt.encode(), digest_size=8, person=b"tepo-split").digest()
    value = int.from_bytes(digest, "little")
    return next(split for split, low, high in _BOUNDS if low <= value < high)
