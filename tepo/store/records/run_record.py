"""A record of a run: everything that tables, figures, claims, power and costs are made from, in about a kilobyte.

It is read as its run's folder is, so that whoever reads results need not know which it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tepo.store.cost import Cost
from tepo.store.early_stop import Ending
from tepo.store.evaluation_result import RightAnswers, Validated
from tepo.store.excerpt import Excerpt
from tepo.store.records.thinned_metrics import unpack
from tepo.store.run_folder import RunFolder


@dataclass(frozen=True)
class Measured:
    """A benchmark as runs were measured on it. problems: ids, sorted."""

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
class Record(RunFolder):
    """The folder of a run, or of a base, without its files. path: ends with the run's id. study, label, model, seed: by
    which a reader knows it. words: the overrides that it was made with. quoted: of a few runs that fell."""

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
    quoted: Excerpt | None = None

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def name(self) -> tuple[str, str, str, int]:
        """The row, model and seed of a study: one run at a time has it."""
        return self.study, self.label, self.model, self.seed

    def manifest(self) -> dict[str, Any]:
        return {"status": "finished"} | ({} if self.ended is None else {"ending": asdict(self.ended)})

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics that are drawn or summed, with few digits."""
        return unpack(self.shown)

    def sessions(self, benchmarks: Iterable[str] = ()) -> list[dict[str, Any]]:
        """A session for all processes of the same versions and machine."""
        return [dict(session) for session in self.made]

    def costs(self) -> list[Cost]:
        return list(self.cost)

    def validated(self) -> Validated | None:
        return self.validation

    def excerpt(self) -> Excerpt | None:
        return self.quoted

    def has(self, benchmark: str) -> bool:
        return benchmark in self.verdicts

    def right_answers(self, benchmark: str) -> RightAnswers | None:
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
