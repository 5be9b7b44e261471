"""What a kind of generated problems is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

Operands = tuple[int, ...]
Slip = Callable[[int, Sequence[int]], int]  # (right result, plausible wrong ones) -> the result that is written


@dataclass(frozen=True, slots=True)
class Task:
    """`draw(random)` gives operands, `prompt(operands)` their text,
    `chain(operands, slip)` the working and the answer."""

    draw: Callable[[Random], Operands]
    prompt: Callable[[Operands], str]
    chain: Callable[[Operands, Slip], tuple[str, int]]


def exact(value: int, wrong: Sequence[int]) -> int:
    """The slip that never happens."""
    return value
