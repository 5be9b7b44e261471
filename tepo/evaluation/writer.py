"""Unfinished evaluations: what is left to sample, and a thread beside the sampling that grades and stores rows."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tepo.evaluation.responses import Prompts, graded_rows
from tepo.evaluation.scheduler import BenchmarkQueue, SampledUnit
from tepo.evaluation.settings import Report
from tepo.problems.benchmarks import Benchmark
from tepo.problems.grader import Grader
from tepo.store.samples_file import read_parts, write_part

_SECONDS = 5.0  # between two parts of a benchmark: responses of the last seconds are what `kill -9` loses at most


@dataclass(frozen=True)
class EvaluationTask:
    """A benchmark to evaluate, what judges its responses, and the folder for its rows."""

    benchmark: Benchmark
    grader: Grader
    folder: Path


@dataclass
class Unfinished:
    """A task with rows missing. identity: what is evaluated and how. stored: ids of the problems whose rows are on
    disk."""

    task: EvaluationTask
    identity: Mapping[str, Any]
    asked: Prompts
    stored: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.stored = set(read_parts(self.task.folder, self.asked.params.n))

    @property
    def name(self) -> str:
        return self.task.benchmark.name

    @property
    def done(self) -> tuple[int, int]:
        """Rows on disk, and all of them."""
        samples = self.asked.params.n
        return samples * len(self.stored), samples * len(self.asked.problems)

    def left(self, size: int) -> BenchmarkQueue:
        """Problems that are left to sample, in units of `size` problems; one that is not stored completely is sampled
        again."""
        prompts, ids = self.asked, [problem.id for problem in self.asked.problems]
        starts = range(0, len(ids), size)
        units = deque(
            range(start, min(start + size, len(ids)))
            for start in starts
            if not self.stored.issuperset(ids[start : start + size])
        )
        return BenchmarkQueue(prompts.prompts, prompts.keys, prompts.params, units)

    def store(self, units: Sequence[SampledUnit], tokenizer: Any) -> None:
        """Grade what was sampled and store it as one part."""
        groups = {index: unit.groups[index] for unit in units for index in unit.problems}
        rows = graded_rows(self.asked, groups, tokenizer, self.task.grader)
        write_part(self.task.folder, min(groups), rows)
        self.stored |= {self.asked.problems[index].id for index in groups}

    def rows(self) -> list[dict[str, Any]]:
        """All rows in the order of the problems."""
        stored = read_parts(self.task.folder, self.asked.params.n)
        return [row for problem in self.asked.problems for row in stored[problem.id]]


class ResultWriter:
    """Grades and stores finished responses of several benchmarks, in a thread of its own. part: number of rows that are
    stored at once, however little time has passed. complete: called with each benchmark whose rows are all there."""

    def __init__(
        self,
        begun: Sequence[Unfinished],
        tokenizer: Any,
        part: int,
        report: Report,
        complete: Callable[[Unfinished], None],
    ):
        self.begun, self.tokenizer, self.part, self.report, self.complete = begun, tokenizer, part, report, complete
        self.thread, self.writes = ThreadPoolExecutor(1), list[Future[None]]()
        self.waiting: list[SampledUnit] = []
        self.since = time.monotonic()
        for evaluation in begun:
            self.writes.append(self.thread.submit(self._report, evaluation))

    def add(self, units: Sequence[SampledUnit]) -> None:
        """Add units that have ended. Raises the error of an earlier one that could not be stored."""
        self.waiting += units
        rows = sum(len(group) for unit in self.waiting for group in unit.groups.values())
        if rows >= self.part or (rows and time.monotonic() - self.since >= _SECONDS):
            self._submit()
        for future in [future for future in self.writes if future.done()]:
            self.writes.remove(future)
            future.result()

    def close(self) -> None:
        """Store what has ended, whatever ended the sampling."""
        self._submit()
        self.thread.shutdown()
        for future in self.writes:
            future.result()

    def _submit(self) -> None:
        self.writes.append(self.thread.submit(self._write, self.waiting))
        self.waiting, self.since = [], time.monotonic()

    def _write(self, units: Sequence[SampledUnit]) -> None:
        for index, begun in enumerate(self.begun):
            if own_units := [unit for unit in units if unit.benchmark == index]:
                begun.store(own_units, self.tokenizer)
                self._report(begun)

    def _report(self, begun: Unfinished) -> None:
        done, total = begun.done
        if done == total:
            self.complete(begun)
        self.report(begun.name, done, total)
