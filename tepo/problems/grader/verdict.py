"""Verdicts of a grader."""

from collections.abc import Iterable
from dataclasses import dataclass

OUT_OF_BUDGET = ("too much work", "timeout", "stalled")
"""Reasons of answers that were given up, on a second try alone: by the count of their work, by the CPU time of their
worker, or because the worker hardly ran at all (a stopped or hopelessly busy machine: the only reason that says
nothing about the answer)."""


def given_up(reasons: Iterable[str]) -> int:
    """Count the reasons that say that the grader gave an answer up: nobody knows whether it was right, it counts as
    wrong."""
    return sum(reason in OUT_OF_BUDGET for reason in reasons)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` says how the verdict was reached (exact, number, symbolic …) or why the answer is wrong (different, no
    answer, unclosed box, timeout …; OUT_OF_BUDGET: it was given up); `extracted` is the answer in the response, None
    without one; `seconds` of a worker's CPU time, both tries together, or of wall clock where it took no worker."""

    correct: bool
    reason: str
    extracted: str | None
    seconds: float
