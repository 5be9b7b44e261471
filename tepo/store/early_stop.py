"""The end of a run before its last step, which is a result and no failure; and with `train.keep_best` the step whose
weights it ends with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tepo.common.errors import Diverged, RunFailed

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


class EarlyStop(Exception):
    """Training ends before its last step; raised on all ranks alike."""

    def __init__(self, kind: Kind, step: int, why: str):
        self.ending = Ending(kind, step, why)
        super().__init__(f"{self.ending}: {why}")


def diverged(error: Diverged, steps: int) -> EarlyStop | RunFailed:
    """The exception for weights that are broken after so many steps: an early stop, or a failure where nothing was
    trained yet, as then it is the base that is broken."""
    if steps == 0:
        return RunFailed(error.what, where=error.where, fix=error.fix)
    return EarlyStop("diverged", steps, error.what)


def check_rewards(rewards: Sequence[float], window: int) -> None:
    """rewards: the mean over all responses that each step drew, up to the one about to be trained.

    Raises EarlyStop where the last `window` (0: never) are all below the first, that of the base."""
    if window and len(rewards) > window and max(rewards[-window:]) < rewards[0]:
        why = f"the reward was below that of step 1 ({rewards[0]:.3f}) in {window} steps running, now {rewards[-1]:.3f}"
        raise EarlyStop("below base", len(rewards), why)


@dataclass(frozen=True)
class Best:
    """step: the earliest with this accuracy (`val-core/average`), the highest so far."""

    step: int
    accuracy: float

    def __str__(self) -> str:
        return f"step {self.step}, whose validation accuracy was best ({self.accuracy:.1%})"


def read_best(value: Any) -> Best | None:
    """The best step in a file, None where it has none. Raises ValueError for anything else."""
    match value:
        case None:
            return None
        case {"step": int(step), "accuracy": float(accuracy), **rest} if not rest:
            return Best(step, accuracy)
    raise ValueError("the best step is not step and accuracy")
