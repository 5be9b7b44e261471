"""The rollout of a step: sample groups, grade them, keep the mixed ones (DAPO section 3.2, TEPO section 4.1).

All prompts of a step run through one queue of the sampler, and groups are graded while others are sampled. Which
groups are trained is decided in `first_mixed`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TypeVar

import numpy as np

from tepo import stopping
from tepo.config.schema import RunConfig
from tepo.errors import Diverged
from tepo.problems.grader import Grader, given_up
from tepo.randomness import derive
from tepo.sampling.sampler import GivenUp, Job, Response, Sampler, SamplingParams
from tepo.sampling.shared_engine import EngineOfRank
from tepo.training.drawn import Counts, Rollout
from tepo.training.ending import Ended
from tepo.training.engine import Comm
from tepo.training.first_mixed import FirstMixed
from tepo.training.flat_rollout import Group
from tepo.training.prompt_stream import Prompt, PromptStream
from tepo.training.recorder import Recorder

_SECONDS = 0.25  # between two decisions, at which ranks meet and new verdicts count
T = TypeVar("T")


def _one_thread() -> Executor:
    return ThreadPoolExecutor(1)


@dataclass
class Collector:
    """What draws rollouts: each engine samples a part of the prompts, a rank of it grades them, then all ranks hold the
    same groups.
    comm: None in a single process. aside: makes what grades beside the sampling. asked: whether to stop."""

    config: RunConfig
    stream: PromptStream
    sampler: Sampler
    grader: Grader
    comm: Comm | None
    aside: Callable[[], Executor] = _one_thread
    asked: Callable[[], bool] = stopping.asked

    @property
    def engine(self) -> EngineOfRank:
        """The one that this rank holds, alone or with its neighbours."""
        return EngineOfRank.of(self.comm, self.config.sampler.tensor_parallel)

    def collect(self, start: int, step: int, before: int, recorder: Recorder) -> Rollout:
        """Draw prompts from number `start` until the first `prompts_per_step` mixed groups in prompt order are known,
        or `max_rounds` times as many prompts are graded. `before`: the prompts that the step before consumed.

        Groups whose responses are all right or all wrong have no advantage and are dropped. What is under way beyond
        the last group taken is given up. Raises, on all ranks: Ended when no group is mixed, Diverged when the policy
        has broken, Stopped when one of them was asked to stop.
        """
        train = self.config.train
        cap = train.prompts_per_step * train.max_rounds
        choice = FirstMixed(start, train.prompts_per_step, cap, before, self.config.sampler.margin)
        with closing(UnderWay(self, step, recorder)) as under_way:
            while not choice.complete:
                for block in choice.blocks():
                    under_way.add(self.engine.share(self.stream.take(block.start, len(block))))
                for number, mixed in self._verdicts(under_way, recorder):
                    choice.grade(number, mixed)
        own = [
            (number, Counts.of(group), group if number in choice.taken else None)
            for number, group in under_way.groups.items()
            if number < choice.end
        ]
        _, counts, groups = zip(*sorted(self._gather(own, recorder), key=itemgetter(0)), strict=True)
        rollout = Rollout([group for group in groups if group], list(counts), choice.added - choice.decided)
        recorder.work.given_up.append(under_way.lost_beyond(choice.end))
        if not rollout.groups:
            raise _ended(rollout, step)
        return rollout

    def _verdicts(self, under_way: "UnderWay", recorder: Recorder) -> list[tuple[int, bool]]:
        """Number and verdict of each group that any rank has graded since the last look."""
        broken: Diverged | None = None
        own: list[tuple[int, bool]] | None
        try:
            own = [(group.prompt.number, Counts.of(group).mixed) for group in under_way.graded()]
        except Diverged as error:
            own, broken = None, error
        verdicts, asked = zip(*self._gather([(own, self.asked())], recorder), strict=True)
        if None in verdicts:
            raise broken or Diverged("the policy has diverged on another rank")
        if any(asked):
            raise stopping.Stopped
        return list(chain(*verdicts))

    def _gather(self, values: list[T], recorder: Recorder) -> list[T]:
        """Those of all ranks."""
        if self.comm is None:
            return values
        with recorder.time("gather"):
            return list(chain(*self.comm.all_gather_object(values)))


def _ended(rollout: Rollout, step: int) -> Ended:
    """What it is called that none of the consumed prompts has a mixed group."""
    count, right, wrong = rollout.consumed, rollout.all_right, rollout.all_wrong
    if wrong == count:
        return Ended("collapse", step, f"all responses to the {count} prompts drawn were wrong")
    if right == count:
        return Ended("saturation", step, f"all responses to the {count} prompts drawn were right")
    why = f"none of {count} prompts gave both right and wrong responses ({right} all right, {wrong} all wrong)"
    return Ended("no signal", step, why)


class UnderWay:
    """The prompts that this rank has under way in a step: at the sampler, then at the grader, in a thread beside.

    groups: number -> the graded group; none on a rank whose engine another speaks for. tokens: number -> those of a
    sampled group. lost: by the queue, once closed.
    """

    def __init__(self, collector: Collector, step: int, recorder: Recorder):
        self.collector, self.step, self.recorder = collector, step, recorder
        train = collector.config.train
        params = SamplingParams(
            n=train.samples_per_prompt, temperature=train.temperature, max_new_tokens=train.max_new_tokens
        )
        self.queue = collector.sampler.start(params)
        self.aside = collector.aside()
        self.sampled: dict[int, Prompt] = {}
        self.judged: dict[int, Future[Group]] = {}
        self.groups: dict[int, Group] = {}
        self.tokens: dict[int, int] = {}
        self.lost: GivenUp | None = None

    def add(self, prompts: Sequence[Prompt]) -> None:
        """This engine's part of a block; it may be empty."""
        if not prompts:
            return
        seed = self.collector.config.seed
        self.sampled |= {prompt.number: prompt for prompt in prompts}
        self.queue.add(
            [Job(prompt.number, prompt.tokens, derive(seed, "rollout", self.step, prompt.number)) for prompt in prompts]
        )

    def graded(self) -> list[Group]:
        """The groups that were graded since the last call; waits a moment for some.

        While the sampler has work it is not kept waiting by the grader. When it has none, all verdicts that come in
        time are awaited: with them, what to add is known best.
        """
        if self.sampled:
            with self.recorder.time("gen"):
                for number, responses in self.queue.finished(_SECONDS):
                    prompt = self.sampled.pop(number)
                    if self.collector.engine.leads:
                        self.tokens[number] = sum(len(response.tokens) for response in responses)
                        self.judged[number] = self.aside.submit(self._grade, prompt, responses)
        with self.recorder.time("reward"):
            wait(self.judged.values(), 0 if self.sampled else _SECONDS)
        done = {number: self.judged.pop(number).result() for number in list(self.judged) if self.judged[number].done()}
        self.groups |= done
        return list(done.values())

    def close(self) -> None:
        """Give up what is still under way."""
        self.lost = self.queue.abort()
        self.aside.shutdown(cancel_futures=True)

    def lost_beyond(self, end: int) -> GivenUp | None:
        """What this rank drew for nothing, once closed: what the queue gave up, and the groups from a number on."""
        if self.lost is None:
            return None
        unused = sum(tokens for number, tokens in self.tokens.items() if number >= end)
        return GivenUp(self.lost.tokens + unused, self.lost.preemptions)

    def _grade(self, prompt: Prompt, responses: list[Response]) -> Group:
        """A group with its rewards."""
        texts = self.collector.stream.decode([response.tokens for response in responses])
        verdicts = self.collector.grader.grade([(prompt.problem.answer, text) for text in texts])
        rewards = np.array([verdict.correct for verdict in verdicts], dtype=np.float32)
        return Group(prompt, responses, rewards, given_up(verdict.reason for verdict in verdicts))
