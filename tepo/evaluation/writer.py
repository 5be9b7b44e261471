"""Evaluations under way: what is left to sample, and rows graded and stored in a thread beside the sampling."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tepo.evaluation.report import Report
from tepo.evaluation.responses import Asked, judged_rows
from tepo.evaluation.scheduler import Pile, Unit
from tepo.problems.benchmarks import Benchmark
from tepo.problems.grader import Grader
from tepo.store.samples_file import read_parts, write_part

_SECONDS = 5.0  # between two parts of a benchmark: the most of what has ended that `kill -9` costs


@dataclass(frozen=True)
class Task:
    """A benchmark to evaluate, what judges its responses, and the folder for its rows."""

    benchmark: Benchmark
    grader: Grader
    folder: Path


@dataclass
class Begun:
    """A task of which rows are missing. identity: what is evaluated and how. stored: ids of the problems whose rows are
    on disk."""

    task: Task
    identity: Mapping[str, Any]
    asked: Asked
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

    def pile(self, size: int) -> Pile:
        """Problems that are left to sample, in units of `size` problems; one that is not stored completely is sampled
        again."""
        asked, ids = self.asked, [problem.id for problem in self.asked.problems]
        starts = range(0, len(ids), size)
        units = deque(
            range(start, min(start + size, len(ids)))
            for start in starts
            if not self.stored.issuperset(ids[start : start + size])
        )
        return Pile(asked.prompts, asked.keys, asked.params, units)

    def keep(self, units: Sequence[Unit], tokenizer: Any) -> None:
        """Grade what was sampled and store it as one part."""
        groups = {index: unit.groups[index] for unit in units for index in unit.problems}
        rows = judged_rows(self.asked, groups, tokenizer, self.task.grader)
        write_part(self.task.folder, min(groups), rows)
        self.stored |= {self.asked.problems[index].id for index in groups}

    def rows(self) -> list[dict[str, Any]]:
        """All rows in the order of the problems."""
        stored = read_parts(self.task.folder, self.asked.params.n)
        return [row for problem in self.asked.problems for row in stored[problem.id]]


class Keeper:
    """Keeps what ends, of several benchmarks. part: rows that are stored at once, whatever time has passed. complete:
    called with each benchmark whose rows are all there."""

    def __init__(
        self, begun: Sequence[Begun], tokenizer: Any, part: int, report: Report, complete: Callable[[Begun], None]
    ):
        self.begun, self.tokenizer, self.part, self.report, self.complete = begun, tokenizer, part, report, complete
        self.aside, self.handed = ThreadPoolExecutor(1), list[Future[None]]()
        self.waiting: list[Unit] = []
        self.since = time.monotonic()
        self.handed.append(self.aside.submit(self._start))

    def take(self, units: Sequence[Unit]) -> None:
        """Units that have ended. Raises what went wrong with earlier ones."""
        self.waiting += units
        rows = sum(len(group) for unit in self.waiting for group in unit.groups.values())
        if rows >= self.part or (rows and time.monotonic() - self.since >= _SECONDS):
            self._hand_over()
        for future in [future for future in self.handed if future.done()]:
            self.handed.remove(future)
            future.result()

    def close(self) -> None:
        """Keep what has ended, whatever ended the sampling."""
        self._hand_over()
        self.aside.shutdown()
        for future in self.handed:
            future.result()

    def _hand_over(self) -> None:
        self.handed.append(self.aside.submit(self._keep, self.waiting))
        self.waiting, self.since = [], time.monotonic()

    def _start(self) -> None:
        for begun in self.begun:
            self._look(begun)

    def _keep(self, units: Sequence[Unit]) -> None:
        for index, begun in enumerate(self.begun):
            if own := [unit for unit in units if unit.benchmark == index]:
                begun.keep(own, self.tokenizer)
                self._look(begun)

    def _look(self, begun: Begun) -> None:
        done, total = begun.done
        if done == total:
            self.complete(begun)
        self.report(begun.name, done, total)
