"""The order in which the problems of several benchmarks are sampled: one queue that is never empty before the end.

No engine is given work in advance. A unit is added as soon as there is room for it, and the sampler gives it to the
engine with the fewest responses under way. So a fast engine takes more, and no engine waits for the straggler of
another while there is something to sample. Units that are expected to take longest come first, which leaves short ones
to fill the end. The order changes no response: response i of a problem depends on (weights, prompt, key, i), and for a
sampler that decodes what is added together by itself on its unit."""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tepo.sampling.sampler import Job, Response, Sampler, SamplingParams

_SECONDS = 0.25  # between two looks for ended units


@dataclass
class BenchmarkQueue:
    """Problems of a benchmark that are left to sample. prompts, keys: of all its problems. units: ranges of problems
    that are added together. responses, tokens: seen so far."""

    prompts: Sequence[Sequence[int]]
    keys: Sequence[int]
    params: SamplingParams
    units: deque[range]
    responses: int = 0
    tokens: int = 0

    @property
    def cost(self) -> float:
        """Tokens that its next unit is expected to have: those of its responses so far, beside one of full length."""
        mean = (self.params.max_new_tokens + self.tokens) / (1 + self.responses)
        return mean * self.params.n * len(self.units[0])

    def jobs(self, problems: range, first: int) -> list[Job]:
        """first: the number of the benchmark's first problem."""
        return [Job(first + index, self.prompts[index], self.keys[index], params=self.params) for index in problems]


@dataclass
class SampledUnit:
    """Problems of a benchmark (both by index) that are sampled together, and the responses of those that have ended."""

    benchmark: int
    problems: range
    groups: dict[int, list[Response]] = field(default_factory=dict)


def sample_all(benchmarks: Sequence[BenchmarkQueue], sampler: Sampler) -> Generator[list[SampledUnit], None, None]:
    """Sample all units. Yields those that have ended since the last look, about four times a second, so also []. Units
    under way when the iterator is closed are given up."""
    if any(benchmark.units for benchmark in benchmarks):
        yield from _Scheduler(benchmarks, sampler).run()


class _Scheduler:
    """rows: responses under way. units: of the jobs under way, by their numbers."""

    def __init__(self, benchmarks: Sequence[BenchmarkQueue], sampler: Sampler):
        self.benchmarks, self.room = benchmarks, sampler.side_by_side or 1
        self.queue = sampler.start(benchmarks[0].params)
        self.first = [0, *accumulate(len(benchmark.prompts) for benchmark in benchmarks)]
        self.units: dict[int, SampledUnit] = {}
        self.rows = 0

    def run(self) -> Generator[list[SampledUnit], None, None]:
        try:
            self._fill()
            while self.units:
                ended = []
                for number, group in self.queue.finished(_SECONDS):
                    unit = self.units.pop(number)
                    benchmark = self.benchmarks[unit.benchmark]
                    benchmark.responses += len(group)
                    benchmark.tokens += sum(len(response.tokens) for response in group)
                    self.rows -= len(group)
                    unit.groups[number - self.first[unit.benchmark]] = group
                    if len(unit.groups) == len(unit.problems):
                        ended.append(unit)
                self._fill()
                yield ended
        finally:
            self.queue.abort()

    def _fill(self) -> None:
        """Add units while there is room, of the benchmark whose next one is expected to take longest."""
        while self.rows < self.room and (
            left := [index for index, benchmark in enumerate(self.benchmarks) if benchmark.units]
        ):
            chosen = max(left, key=lambda index: self.benchmarks[index].cost)
            benchmark = self.benchmarks[chosen]
            unit = SampledUnit(chosen, benchmark.units.popleft())
            jobs = benchmark.jobs(unit.problems, self.first[chosen])
            self.units |= {job.number: unit for job in jobs}
            self.rows += len(jobs) * benchmark.params.n
            self.queue.add(jobs)
