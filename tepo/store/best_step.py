"""The step of a run whose validation was best, with `train.keep_best`: the run ends with its weights."""

from dataclasses import dataclass
from typing import Any


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
