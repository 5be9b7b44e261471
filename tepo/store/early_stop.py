"""Early stops: a run ends before its last step as a result, which counts, and no failure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Kind = Literal["collapse", "saturation", "no signal", "below base", "diverged"]


@dataclass(frozen=True)
class Ending:
    """step: the one that was not finished; the run's weights are those after the step before it.

    collapse, saturation, no signal: no group of the step is mixed, as all responses are wrong, all are right, or each
    group is one of the two. below base: see `check_rewards`. diverged: the step's updates left a policy whose loss or
    probabilities are not numbers.
    """

    kind: Kind
    step: int
    why: str

    def __str__(self) -> str:
        return f"{self.kind} at step {self.step}"


def read_ending(value: Any) -> Ending:
    """The ending in a file. Raises ValueError for anything else."""
    match value:
        case {"kind": str(kind), "step": int(step), "why": str(why), **rest} if kind in get_args(Kind) and not rest:
            return Ending(kind, step, why)  # type: ignore[arg-type]
    raise ValueError("the ending is not kind, step and reason")


class Ended(Exception):
    """Training has ended; raised on all ranks alike."""

    def __init__(self, kind: Kind, step: int, why: str):
        self.ending = Ending(kind, step, why)
        super().__init__(f"{self.ending}: {why}")


def check_rewards(rewards: Sequence[float], window: int) -> None:
    """rewards: the mean over all responses that each step drew, up to the one about to be trained.

    Raises Ended where the last `window` (0: never) are all below the first, that of the base."""
    if window and len(rewards) > window and max(rewards[-window:]) < rewards[0]:
        why = f"the reward was below that of step 1 ({rewards[0]:.3f}) in {window} steps running, now {rewards[-1]:.3f}"
        raise Ended("below base", len(rewards), why)
