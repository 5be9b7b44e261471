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
from typing import Any

from tepo.sampling.sampler import Job, Sampler, SamplingParams
from tepo.sampling.served import ServedSampler

_SECONDS = 0.25  # between two looks for ended units


@dataclass
class BenchmarkQueue:
    """Problems of a benchmark that are left to sample."""

    prompts: Sequence[Any]  # of all its problems, as are the keys
    keys: Sequence[int]
    params: SamplingParams
    units: deque[range]  # problems that are added together
    responses: int = 0  # seen so far, and their tokens
    tokens: int = 0

    @property
    def cost(self) -> float:
        """Tokens that its next unit is expected to have: those of its responses so far, beside one of full length."""
        mean = (self.params.max_new_tokens + self.tokens) / (1 + self.responses)
        return mean * self.params.n * len(self.units[0])


@dataclass
class SampledUnit:
    """Problems of a benchmark (both by index) that are sampled together, and the responses of those that have ended."""

    benchmark: int
    problems: range
    groups: dict[int, Sequence[Any]] = field(default_factory=dict)


def sample_all(
    benchmarks: Sequence[BenchmarkQueue], sampler: Sampler | ServedSampler
) -> Generator[list[SampledUnit], None, None]:
    """Sample all units. Yields those that have ended since the last look, about four times a second, so also []. Units
    under way when the iterator is closed are given up."""
    if not any(benchmark.units for benchmark in benchmarks):
        return
    first = [0, *accumulate(len(benchmark.prompts) for benchmark in benchmarks)]  # jobs are numbered through
    under_way: dict[int, SampledUnit] = {}  # by the number of a job
    rows, ended = 0, None  # responses under way
    queue = sampler.start(benchmarks[0].params)
    try:
        while True:
            while rows < (sampler.side_by_side or 1) and (
                places := [place for place, benchmark in enumerate(benchmarks) if benchmark.units]
            ):
                place = max(places, key=lambda place: benchmarks[place].cost)  # whose next is expected to take longest
                longest, unit = benchmarks[place], SampledUnit(place, benchmarks[place].units.popleft())
                jobs = [
                    Job(first[place] + index, longest.prompts[index], longest.keys[index], params=longest.params)
                    for index in unit.problems
                ]
                under_way |= {job.number: unit for job in jobs}
                rows += len(jobs) * longest.params.n
                queue.add(jobs)
            if ended is not None:  # the room is filled before others store them
                yield ended
            if not under_way:
                return
            ended = []
            for number, group in queue.finished(_SECONDS):
                unit = under_way.pop(number)
                benchmark = benchmarks[unit.benchmark]
                benchmark.responses += len(group)
                benchmark.tokens += sum(response.length for response in group)
                rows -= len(group)
                unit.groups[number - first[unit.benchmark]] = group
                if len(unit.groups) == len(unit.problems):
                    ended.append(unit)
    finally:
        queue.abort()
