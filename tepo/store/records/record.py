"""A record of a run: everything that tables, figures, claims, power and costs are made from, in about a kilobyte.

It has the methods of `Stored` (tepo.store.stored), so that a unit can be read from either.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tepo.store.cost import Cost
from tepo.store.early_stop import Ending
from tepo.store.records.thinned_metrics import unpack
from tepo.store.validation_result import Validated

if TYPE_CHECKING:
    from tepo.store.correct_counts import RightAnswers


@dataclass(frozen=True)
class Measured:
    """What a benchmark was when runs were measured on it. problems: ids, sorted."""

    name: str
    samples: int
    grader: str
    task: Mapping[str, Any]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Verdicts:
    """right: of the samples of each problem, in the order of their ids. timeouts: as in `Result`."""

    on: Measured
    right: tuple[int, ...]
    timeouts: int = 0


@dataclass(frozen=True)
class Record:
    """id: of the run, or of the base. study, label, model, seed: by which a reader knows it. words: the overrides that
    it was made with."""

    id: str
    recipe: int
    study: str
    label: str
    model: str
    seed: int
    words: tuple[str, ...]
    ended: Ending | None
    made: tuple[Mapping[str, Any], ...]
    cost: tuple[Cost, ...]
    shown: Mapping[str, Any]
    verdicts: Mapping[str, Verdicts]
    validation: Validated | None = None

    @property
    def name(self) -> tuple[str, str, str, int]:
        """The row, model and seed of a study: one run at a time has it."""
        return self.study, self.label, self.model, self.seed

    def trained(self) -> bool:
        return True

    def ending(self) -> Ending | None:
        return self.ended

    def outcome(self) -> str:
        return "finished" if self.ended is None else f"finished: {self.ended}"

    def metrics(self) -> list[dict[str, Any]]:
        """Those that are drawn or summed, with few digits."""
        return unpack(self.shown)

    def sessions(self) -> list[dict[str, Any]]:
        """One for all processes of the same versions and machine."""
        return [dict(session) for session in self.made]

    def costs(self) -> list[Cost]:
        return list(self.cost)

    def validated(self) -> Validated | None:
        return self.validation

    def measured(self, benchmark: str) -> bool:
        return benchmark in self.verdicts

    def right_answers(self, benchmark: str) -> "RightAnswers | None":
        from tepo.store.correct_counts import RightAnswers

        if benchmark not in self.verdicts:
            return None
        verdicts = self.verdicts[benchmark]
        return RightAnswers(verdicts.on.problems, verdicts.right, verdicts.on.samples)

    def timeouts(self, benchmark: str) -> int:
        return self.verdicts[benchmark].timeouts if benchmark in self.verdicts else 0

    def grader(self, benchmark: str) -> str | None:
        return self.verdicts[benchmark].on.grader if benchmark in self.verdicts else None


def facts_of(session: Mapping[str, Any]) -> dict[str, Any]:
    """Versions and machine of a session."""
    return {key: value for key, value in session.items() if key not in ("what", "started", "ended")}
