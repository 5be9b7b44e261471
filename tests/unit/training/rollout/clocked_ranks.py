"""Stand-ins for what a rollout talks to, with a clock in place of GPUs: engines, samplers, ranks, prompts, grader."""

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from tepo.objectives.testing.simulated_ranks import SimulatedRank
from tepo.problems.problem import Problem
from tepo.sampling.sampler import Job, Response, SamplingParams
from tepo.sampling.vllm.response_groups import ResponseGroups
from tepo.training.rollout_batch import Prompt


@dataclass(frozen=True)
class Workload:
    """Groups by the number of their prompt; `kept` of them are mixed."""

    size: int
    seed: int = 0
    kept: float = 0.5

    def group(self, number: int) -> tuple[list[int], int]:
        """Lengths of the responses, and how many of them are right: the first ones."""
        rng = np.random.default_rng([self.seed, number])
        lengths = np.clip(rng.lognormal(5.4, 0.8, self.size).astype(int), 1, 1500).tolist()
        mixed = rng.random() < self.kept
        return lengths, int(rng.integers(1, self.size)) if mixed else self.size * int(rng.random() < 0.5)


class Engine:
    """Decodes at most eight responses side by side, a token of each in so many seconds. given: names of all."""

    rows = 8

    def __init__(self, token: float) -> None:
        self.token, self.clock = token, 0.0
        self.running: dict[Any, int] = {}  # tokens that are left
        self.waiting: deque[tuple[Any, int]] = deque()
        self.given: list[Any] = []

    def add(self, name: Any, length: int) -> None:
        self.given.append(name)
        self.waiting.append((name, length))

    def run(self, until: float) -> list[Any]:
        """Decode until a row ends or, with at most a token more, until a time. Returns the names of what ended."""
        while self.running or self.waiting:
            while self.waiting and len(self.running) < self.rows:
                name, length = self.waiting.popleft()
                self.running[name] = length
            tokens = min(self.running.values())
            if until < math.inf:
                tokens = max(1, min(tokens, math.ceil((until - self.clock) / self.token)))
            self.clock += tokens * self.token
            ended = [name for name, left in self.running.items() if left == tokens]
            self.running = {name: left - tokens for name, left in self.running.items() if left > tokens}
            if ended or self.clock >= until:
                return ended
        return []

    def drop(self, given_up: Callable[[Any], bool]) -> None:
        self.running = {name: left for name, left in self.running.items() if not given_up(name)}
        self.waiting = deque(one for one in self.waiting if not given_up(one[0]))


class ClockedQueue:
    """`tepo.sampling.sampler.Queue` at an engine, which runs while `finished` is called. Jobs are parts of groups,
    numbered as `tepo.training.rollout.prompt_queue` does."""

    def __init__(self, engine: Engine, workload: Workload, params: SamplingParams) -> None:
        self.engine, self.workload, self.groups = engine, workload, ResponseGroups(params)

    def add(self, jobs: Sequence[Job]) -> None:
        for job, index in self.groups.begin(jobs):
            self.engine.add((job.number, index), self.workload.group(job.number // self.workload.size)[0][index])

    def finished(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
        engine, groups = self.engine, []
        until = math.inf if seconds is None else engine.clock + seconds
        while engine.running or engine.waiting:
            for number, index in engine.run(until):
                lengths, right = self.workload.group(number // self.workload.size)
                groups += self.groups.put(number, index, response(lengths[index], index < right))
            if engine.clock >= until or (groups and seconds is None):
                break
        return groups

    def drop(self, numbers: Collection[int]) -> None:
        dropped = set(numbers)
        self.engine.drop(lambda name: name[0] in dropped)
        self.groups.drop(dropped)

    def abort(self) -> None:
        self.engine.drop(lambda name: True)


@dataclass
class ClockedSampler:
    """`tepo.sampling.sampler.Sampler`, as far as a rollout uses it."""

    engine: Engine
    workload: Workload
    score = None
    side_by_side = Engine.rows

    def start(self, params: SamplingParams) -> ClockedQueue:
        return ClockedQueue(self.engine, self.workload, params)


def response(length: int, right: bool) -> Response:
    """Its tokens say whether it is right; no memory is taken for them."""
    zeros = np.broadcast_to(np.float32(0), length)
    return Response(np.broadcast_to(np.int32(right), length), zeros, zeros, True)


class Stream:
    """Prompts number 0, 1, 2 …; a response reads as its first token."""

    stop = ()

    def take(self, start: int, count: int) -> list[Prompt]:
        return [Prompt(number, Problem(str(number), "", "1"), [0] * 200) for number in range(start, start + count)]

    def decode(self, responses: Sequence[Response]) -> list[str]:
        return [str(one.tokens[0]) for one in responses]


class Judge:
    """A grader that takes no time: in a run it works beside the sampling."""

    def grade(self, pairs: Sequence[tuple[str, str]]) -> list[Any]:
        return [SimpleNamespace(correct=gold == text, reason="") for gold, text in pairs]


class AtOnce(Executor):
    """Runs what it is given before it returns, so that nothing depends on threads."""

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
