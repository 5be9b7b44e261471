"""An evaluation on simulated engines: the code that deals its problems (`tepo.evaluation.scheduler`), with a clock in
place of GPUs. Loading the engines, grading and storing are not simulated."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tepo.evaluation.scheduler import BenchmarkQueue, sample_all
from tepo.planning.simulator.clocked_sampler import Engine, response
from tepo.planning.simulator.schedules import Setup
from tepo.planning.simulator.workload import PROMPT, Workload
from tepo.problems.benchmarks import PAPER, load_benchmark
from tepo.sampling.sampler import Job, Response, SamplingParams
from tepo.sampling.vllm.response_groups import ResponseGroups, fewest


@dataclass(frozen=True)
class Evaluation:
    """idle: share of the GPUs' time in which they decode nothing. least: a lower bound of the seconds, see
    `Decoding.least`."""

    samples: int
    seconds: float
    idle: float
    least: float


def dealt(setup: Setup) -> Evaluation:
    """The papers' seven benchmarks on all engines, as `tepo eval` deals them."""
    sampler, queues = ClockedServers([Engine(setup.decoding) for _ in range(setup.engines)], setup.workload), []
    for one in map(load_benchmark, PAPER):  # all its problems, whatever they are
        params = SamplingParams(n=one.samples, temperature=one.temperature, max_new_tokens=one.max_new_tokens)
        problems = deque(range(index, index + 1) for index in range(one.count))
        queues.append(BenchmarkQueue([()] * one.count, [0] * one.count, params, problems))
    lengths = [
        len(one.tokens)
        for units in sample_all(queues, sampler)  # type: ignore[arg-type]
        for unit in units
        for group in unit.groups.values()
        for one in group
    ]
    return _evaluation(setup, sampler.engines, lengths, sampler.last)


def in_blocks(setup: Setup, samples: int, block: int) -> Evaluation:
    """On one engine in blocks, each waited for: how rows were measured before they were dealt."""
    engines = [Engine(setup.decoding) for _ in range(setup.engines)]
    lengths = [setup.workload.group(number, 2).lengths[0] for number in range(samples)]
    for begin in range(0, samples, block):
        for index, length in enumerate(lengths[begin : begin + block]):
            engines[0].add(index, length)
        while engines[0].run(float("inf")):
            pass
    return _evaluation(setup, engines, lengths, engines[0].clock)


def _evaluation(setup: Setup, engines: Sequence[Engine], lengths: list[int], seconds: float) -> Evaluation:
    idle = 1 - sum(engine.busy for engine in engines) / (seconds * len(engines))
    return Evaluation(len(lengths), seconds, idle, setup.decoding.least(max(lengths), lengths, PROMPT, setup.engines))


class ClockedServers:
    """`tepo.sampling.sampler.Sampler`, as far as an evaluation uses it: an engine a server. last: when the last
    response ended."""

    score = None

    def __init__(self, engines: Sequence[Engine], workload: Workload):
        self.engines, self.workload, self.last = engines, workload, 0.0
        self.side_by_side = sum(engine.decoding.max_rows for engine in engines)

    def start(self, params: SamplingParams) -> "ClockedServerQueue":
        return ClockedServerQueue(self, params)


class ClockedServerQueue:
    """`tepo.sampling.sampler.Queue`; all engines run while `finished` is called."""

    def __init__(self, sampler: ClockedServers, params: SamplingParams):
        self.sampler, self.groups, self.clock = sampler, ResponseGroups(params), 0.0
        self.under_way = [0] * len(sampler.engines)
        self.lengths: dict[int, list[int]] = {}

    def add(self, jobs: Sequence[Job]) -> None:
        server = 0
        for job, index in self.groups.begin(jobs):
            if index == 0:
                server = fewest(self.under_way)
                size = max(2, self.groups.of(job).n)
                self.lengths[job.number] = self.sampler.workload.group(job.number, size).lengths
            self.under_way[server] += 1
            self.sampler.engines[server].add((job.number, index), self.lengths[job.number][index])

    def finished(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
        assert seconds is not None
        self.clock += seconds
        groups = []
        for server, engine in enumerate(self.sampler.engines):
            while engine.clock < self.clock and (engine.rows or engine.waiting):
                for number, index in engine.run(self.clock):
                    self.under_way[server] -= 1
                    self.sampler.last = max(self.sampler.last, engine.clock)
                    groups += self.groups.put(number, index, response(self.lengths[number][index], False))
            engine.clock = max(engine.clock, self.clock)
        return groups

    def abort(self) -> None:
        for engine in self.sampler.engines:
            engine.drop(lambda name: True)
