"""A kind of generated problems."""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

Operands = tuple[int, ...]
Slip = Callable[[int, Sequence[int]], int]  # (right result, plausible wrong ones) -> the result that is written


class Task(NamedTuple):
    draw: Callable[[Random], Operands]
    form: Callable[..., str]  # the prompt of these operands
    chain: Callable[[Operands, Slip], tuple[str, int]]  # the working and the answer
    wording: Callable[[Operands, Random], tuple[str, int]] | None = None  # the same, in words that are drawn


def exact(value: int, wrong: Sequence[int]) -> int:
    """The slip that never happens."""
    return value
