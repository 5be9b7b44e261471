"""Stand-ins that the rollout's own code talks to when a clock replaces the GPU: engine, sampler, queue, ranks."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from tepo.objectives.testing.simulated_ranks import SimulatedRank
from tepo.planning.simulator.workload import PROMPT, Drawn, Workload
from tepo.problems.problem import Problem
from tepo.sampling.embedded.batch_queue import Waves
from tepo.sampling.sampler import Job, Queue, Response, SamplingParams
from tepo.sampling.vllm.response_groups import ResponseGroups
from tepo.training.rollout_batch import Prompt


@dataclass(order=True)
class SimulatedResponse:
    """A response under way; it ends `left` tokens after it was admitted, at step `end` of its engine."""

    end: int
    order: int
    name: Any = field(compare=False)
    left: int = field(compare=False)
    held: int = field(compare=False, default=PROMPT)


class Rate(Protocol):
    """Seconds that an engine takes; see `Decoding`."""

    @property
    def max_rows(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    def seconds(self, steps: int, rows: int, cached: int) -> float: ...

    def prefill(self, tokens: int) -> float: ...


class Engine:
    """Continuous batching: rows are admitted while there is cache, and the last one is preempted when there is none."""

    def __init__(self, decoding: Rate) -> None:
        self.decoding, self.capacity = decoding, decoding.capacity
        self.clock = self.busy = 0.0
        self.steps = self.cached = self.count = self.tokens = self.preempted = 0
        self.rows: list[SimulatedResponse] = []  # a heap by end; `end - steps` tokens are left
        self.waiting: deque[SimulatedResponse] = deque()

    def add(self, name: Any, length: int, prompt: int = PROMPT) -> None:
        self.count += 1
        self.waiting.append(SimulatedResponse(0, self.count, name, length, prompt))

    def run(self, until: float) -> list[Any]:
        """Decode until a row ends or, with at most a step more, until a time. Returns the names of what ended."""
        while self.rows or self.waiting:
            while self.waiting and len(self.rows) < self.decoding.max_rows:
                row = self.waiting[0]
                if self.rows and self.cached + row.held + len(self.rows) >= self.capacity:
                    break
                self.waiting.popleft()
                spent = self.decoding.prefill(row.held)
                self.clock, self.busy = self.clock + spent, self.busy + spent
                row.end = self.steps + row.left
                heapq.heappush(self.rows, row)
                self.cached += row.held
            steps = self._steps(until)
            spent = self.decoding.seconds(steps, len(self.rows), self.cached)
            self.clock, self.busy = self.clock + spent, self.busy + spent
            self.steps += steps
            self.cached += steps * len(self.rows)
            self.tokens += steps * len(self.rows)
            ended = []
            while self.rows and self.rows[0].end <= self.steps:
                row = heapq.heappop(self.rows)
                self.cached -= row.held + row.left
                ended.append(row.name)
            if ended or self.clock >= until:
                return ended
            while len(self.rows) > 1 and self.cached + len(self.rows) > self.capacity:  # the last one is preempted
                row = max(self.rows, key=lambda row: row.order)
                self.rows.remove(row)
                heapq.heapify(self.rows)
                left = row.end - self.steps
                held = row.held + row.left - left
                self.cached -= held
                self.preempted += 1
                self.waiting.appendleft(SimulatedResponse(0, row.order, row.name, left, held))
        return []

    def drop(self, given_up: Callable[[Any], bool]) -> None:
        """Give up the rows of such names."""
        gone = [row for row in self.rows if given_up(row.name)]
        self.cached -= sum(row.held + row.left - (row.end - self.steps) for row in gone)
        self.rows = [row for row in self.rows if not given_up(row.name)]
        heapq.heapify(self.rows)
        self.waiting = deque(row for row in self.waiting if not given_up(row.name))

    def _steps(self, until: float) -> int:
        """Until a row ends, the cache is full, or the time is there; at least one."""
        rows = len(self.rows)
        most = self.rows[0].end - self.steps
        if rows > 1:
            most = min(most, max(1, (self.capacity - self.cached) // rows))
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.clock + self.decoding.seconds(middle - 1, rows, self.cached) < until:
                low = middle
            else:
                high = middle - 1
        return low


class ClockedQueue:
    """`tepo.sampling.sampler.Queue` at a simulated engine, which runs while `finished` is called.

    size: responses of a group; jobs are parts of groups, numbered as `tepo.training.rollout.prompt_queue` does.
    """

    def __init__(self, engine: Engine, workload: Workload, size: int, params: SamplingParams) -> None:
        self.engine, self.workload, self.size, self.groups = engine, workload, size, ResponseGroups(params)
        self.drawn: dict[int, Drawn] = {}

    def add(self, jobs: Sequence[Job]) -> None:
        for job, index in self.groups.begin(jobs):
            if job.number not in self.drawn:
                self.drawn[job.number] = self.workload.group(job.number // self.size, self.size)
            self.engine.add((job.number, index), self.drawn[job.number].lengths[index], len(job.prompt))

    def finished(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
        engine, groups = self.engine, []
        until = float("inf") if seconds is None else engine.clock + seconds
        while engine.rows or engine.waiting:
            for number, index in engine.run(until):
                drawn = self.drawn[number]
                groups += self.groups.put(number, index, response(drawn.lengths[index], index < drawn.right))
            if engine.clock >= until or (groups and seconds is None):
                break
        return groups

    def drop(self, numbers: Collection[int]) -> None:
        dropped = set(numbers)
        self.engine.drop(lambda name: name[0] in dropped)
        self.groups.drop(dropped)

    def abort(self) -> None:
        self.engine.drop(lambda name: True)


def response(length: int, right: bool) -> Response:
    """Its tokens say whether it is right; no memory is taken for them."""
    zeros = np.broadcast_to(np.float32(0), length)
    return Response(np.broadcast_to(np.int32(right), length), zeros, zeros, True)


@dataclass
class ClockedSampler:
    """`tepo.sampling.sampler.Sampler`, as far as a rollout uses it. size: responses of a group."""

    engine: Engine
    workload: Workload
    size: int
    batches: bool = False  # the prompts of an `add` in batches that run to their end, as the embedded sampler does
    score = None

    @property
    def side_by_side(self) -> int | None:
        return None if self.batches else self.engine.decoding.max_rows

    def start(self, params: SamplingParams) -> Queue:
        queue = ClockedQueue(self.engine, self.workload, self.size, params)
        return Waves(lambda jobs: None, partial(self._batch, queue)) if self.batches else queue

    def _batch(self, queue: ClockedQueue, jobs: Sequence[Job]) -> list[list[Response]]:
        """Groups of as many of the first jobs as fit side by side."""
        room = max(1, self.engine.decoding.max_rows // self.size)
        jobs = jobs[: math.ceil(len(jobs) / math.ceil(len(jobs) / room))]
        queue.add(jobs)
        done: dict[int, list[Response]] = {}
        while len(done) < len(jobs):
            done.update(queue.finished())
        return [done[job.number] for job in jobs]


class Stream:
    """Prompts number 0, 1, 2 …, of the mean length; a response reads as its first token."""

    stop = ()

    def take(self, start: int, count: int) -> list[Prompt]:
        tokens = [0] * PROMPT
        return [Prompt(number, Problem(str(number), "", "1"), tokens) for number in range(start, start + count)]

    def decode(self, responses: Sequence[Response]) -> list[str]:
        return [str(response.tokens[0]) for response in responses]


class Judge:
    """A grader that takes no time: in a run it works beside the sampling."""

    def grade(self, pairs: Sequence[tuple[str, str]]) -> list[Any]:
        return [SimpleNamespace(correct=gold == text, reason="") for gold, text in pairs]


class AtOnce(Executor):
    """Runs what it is given before it returns, so that the simulation does not depend on threads."""

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*arguments, **options))
        return future


class ClockedRank:
    """A rank's `Comm` for a rollout: when ranks meet, all clocks go on to that of the last."""

    def __init__(self, simulated: SimulatedRank, engine: Engine) -> None:
        self.simulated, self.engine = simulated, engine
        self.rank, self.world_size = simulated.rank, simulated.world_size

    def all_gather_object(self, value: Any) -> list[Any]:
        found = self.simulated.all_gather_object((self.engine.clock, value))
        self.engine.clock = max(clock for clock, _ in found)
        return [value for _, value in found]
