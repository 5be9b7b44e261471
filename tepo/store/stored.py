"""What was trained and measured in a run's folder. `Record` (tepo.store.records.record) has the same methods."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tepo.common import provenance
from tepo.store.cost import Cost, costs_of
from tepo.store.early_stop import Ending
from tepo.store.evaluation_result import has_result, load_result
from tepo.store.run_folder import RunFolder
from tepo.store.validation_result import Validated, validated

if TYPE_CHECKING:
    from tepo.store.correct_counts import RightAnswers


@dataclass(frozen=True)
class Stored:
    """benchmarks: those that count as its own."""

    run: RunFolder
    benchmarks: Sequence[str]

    def trained(self) -> bool:
        return self.run.finished()

    def ending(self) -> Ending | None:
        """Where training ended before its last step."""
        return self.run.ending()

    def outcome(self) -> str:
        """The status in words, with the ending."""
        return self.run.outcome()

    def metrics(self) -> list[dict[str, Any]]:
        """A mapping a step, verl's names."""
        return self.run.metrics()

    def sessions(self) -> list[dict[str, Any]]:
        """The processes that trained and measured it, as far as they are on record."""
        folders = [self.run.path, *map(self.run.evaluation, self.benchmarks)]
        return [session for folder in folders for session in provenance.sessions(folder)]

    def costs(self) -> list[Cost]:
        return costs_of(self.run)

    def validated(self) -> Validated | None:
        """How its last weights answer validation problems."""
        return validated(self.run)

    def measured(self, benchmark: str) -> bool:
        return has_result(self.run.evaluation(benchmark))

    def right_answers(self, benchmark: str) -> "RightAnswers | None":
        """None where it was not measured."""
        from tepo.store.correct_counts import read_right_answers  # needs pyarrow

        return read_right_answers(self.run.evaluation(benchmark))

    def timeouts(self, benchmark: str) -> int:
        """Answers that ran out of the grader's budget."""
        result = load_result(self.run.evaluation(benchmark))
        return (result.timeouts or 0) if result else 0

    def grader(self, benchmark: str) -> str | None:
        """The fingerprint behind its verdicts."""
        result = load_result(self.run.evaluation(benchmark))
        return result.grader if result else None
