"""The stored samples of an evaluation, problem by problem."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from tepo.store.evaluation_result import SAMPLES

_PROBLEM = ("problem", "prompt", "gold")
_ANSWER = ("response", "extracted", "correct", "reason", "tokens")


class Answer(NamedTuple):
    """One response. extracted: the answer read from it, None where there is none. reason: of the verdict. tokens: its
    length. finished: by itself, not at the length limit."""

    text: str
    extracted: str | None
    right: bool
    reason: str
    tokens: int
    finished: bool


@dataclass(frozen=True)
class ProblemAnswers:
    """One problem with the answers of one run."""

    id: str
    prompt: str
    gold: str
    answers: tuple[Answer, ...]

    @property
    def samples(self) -> int:
        return len(self.answers)

    @property
    def right(self) -> int:
        return sum(answer.right for answer in self.answers)

    @property
    def different(self) -> list[tuple[Answer, int]]:
        """Each different answer with how often it was given, the most frequent first."""
        return Counter(self.answers).most_common()


def disagree(one: ProblemAnswers, other: ProblemAnswers) -> bool:
    """Tell whether one run answers at least half of its samples right, and the other does not."""
    return (2 * one.right >= one.samples) != (2 * other.right >= other.samples)


def answered(folder: Path) -> list[ProblemAnswers]:
    """Stored responses of a finished evaluation, in the benchmark's order. Raises UserError for samples that cannot be
    read."""
    from tepo.store.samples_file import read_table  # needs pyarrow

    rows = read_table(folder / SAMPLES).select([*_PROBLEM, *_ANSWER, "finish"]).to_pylist()
    return [
        ProblemAnswers(problem, prompt, gold, tuple(map(_answer, group)))
        for (problem, prompt, gold), group in groupby(rows, key=itemgetter(*_PROBLEM))
    ]


def _answer(row: Mapping[str, Any]) -> Answer:
    return Answer._make([*map(row.get, _ANSWER), row["finish"] == "stop"])
