"""Stored benchmark samples as the page compares them: problem by problem, as many as fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tepo.reporting.page.packed import packed
from tepo.store.stored_responses import Answer, ProblemAnswers

BYTES = 1_000_000
"""Size of the samples in the page at most: about a third of what the page may have."""


@dataclass(frozen=True)
class RunSamples:
    """Responses of one run, by benchmark: none for a run that is left out of the comparison."""

    id: str
    label: str
    benchmarks: Mapping[str, Sequence[ProblemAnswers]]


def pack_samples(runs: Sequence[RunSamples], budget: int = BYTES) -> dict[str, Any]:
    """The first problems of each benchmark, the same share of all, so that the text has at most `budget` characters.
    Beside it the number of runs, of runs left out, of problems shown, and of all that are stored.

    A problem on the page has all its samples of all runs."""
    known = [run for run in runs if run.benchmarks]
    total = sum(len(problems) for problems in _by_problem(known, 1.0).values())
    share = 1.0
    while True:
        kept = [entry for problems in _by_problem(known, share).values() for entry in problems]
        text = packed({"runs": [[run.id, run.label] for run in known], "problems": kept})
        if len(text) <= budget or not kept:
            counts = {"runs": len(known), "left_out": len(runs) - len(known), "shown": len(kept), "total": total}
            return {"text": text} | counts
        share *= min(0.9, 0.95 * budget / len(text))


def _by_problem(runs: Sequence[RunSamples], share: float) -> dict[str, list[list[Any]]]:
    """Benchmark -> [benchmark, problem, prompt, gold, different answers, for each run [answer's index, how often]]."""
    shown: dict[str, list[list[Any]]] = {}
    for name in dict.fromkeys(name for run in runs for name in run.benchmarks):
        every = [{problem.id: problem for problem in run.benchmarks.get(name, ())} for run in runs]
        ids = list(dict.fromkeys(problem for one in every for problem in one))
        shown[name] = [_entry(name, [one.get(id) for one in every]) for id in ids[: int(share * len(ids))]]
    return shown


def _entry(benchmark: str, answered: Sequence[ProblemAnswers | None]) -> list[Any]:
    problem = next(one for one in answered if one is not None)
    number: dict[Answer, int] = {}
    picked = [
        None if one is None else [[number.setdefault(answer, len(number)), count] for answer, count in one.different]
        for one in answered
    ]
    return [benchmark, problem.id, problem.prompt, problem.gold, list(number), picked]
