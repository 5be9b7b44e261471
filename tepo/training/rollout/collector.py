"""The rollout of a step: sample groups, grade them, keep the mixed ones (DAPO section 3.2, TEPO section 4.1).

All prompts of a step run through one queue over all ranks (`prompt_queue`), and responses are graded while others are
sampled. Which groups are trained is decided in `dynamic_sampling`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from tepo.common import signals
from tepo.common.errors import Diverged
from tepo.common.randomness import derive
from tepo.config.run_config import RunConfig, chosen
from tepo.problems.grader import Grader, given_up
from tepo.problems.rewards.own_rewards import OwnRewards, check_failures
from tepo.sampling.engine_ranks import EngineOfRank
from tepo.sampling.sampler import Job, Response, Sampler, SamplingParams
from tepo.store.early_stop import EarlyStop, Kind
from tepo.training.distributed.comm import Comm
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.dynamic_sampling import DynamicSampling
from tepo.training.rollout.group_stats import Rollout
from tepo.training.rollout.prompt_queue import PromptQueue
from tepo.training.rollout.prompt_stream import PromptStream
from tepo.training.rollout_batch import Group, Prompt

# Between two decisions, at which new verdicts count. Where ranks meet for them, each waits for the one that is in the
# longest step of its engine.
_ALONE, _MEETING = 0.25, 1.0
_EXAMPLES = 8  # groups, or responses, of a step without a mixed group that are kept to look at
T = TypeVar("T")
Verdicts = tuple[int, list[float], tuple[str, ...]]  # a part, its rewards, and failures of own ones


class NoMixedGroups(EarlyStop):
    """Early stop of a step that drew no mixed group. examples: some of the groups, to look at: of a base that
    is never right, the rewards may be broken."""

    def __init__(self, rollout: Rollout, step: int, examples: Sequence[Group]):
        self.examples = examples
        count, right, wrong = rollout.consumed, rollout.all_have(1.0), rollout.all_have(0.0)
        kind: Kind = "no signal"
        why = f"none of {count} prompts gave responses of different reward ({right} all right, {wrong} all wrong)"
        if wrong == count:
            kind, why = "collapse", f"all responses to the {count} prompts drawn were wrong"
            if step == 1:
                why += ", and none was ever right: look at the golds (`tepo data verify`), the form of the prompts and "
                why += f"train.max_new_tokens ({rollout.cut} of {len(rollout.lengths)} responses were cut off)"
        elif right == count:
            kind, why = "saturation", f"all responses to the {count} prompts drawn were right"
        super().__init__(kind, step, why)


@dataclass
class Collector:
    """Draws rollouts: each engine samples what the shared queue deals it, a rank of it grades that, then all ranks hold
    the same groups. comm: None in a single process. aside: makes the executor that grades beside the sampling. asked:
    whether to stop. own: rewards in place of the grader's verdict. every_group: those not mixed are trained too."""

    config: RunConfig
    stream: PromptStream
    sampler: Sampler
    grader: Grader
    comm: Comm | None
    aside: Callable[[], Executor] = lambda: ThreadPoolExecutor(1)
    asked: Callable[[], bool] = signals.asked
    own: OwnRewards | None = None
    every_group: bool = False

    @property
    def engine(self) -> EngineOfRank:
        """Engine that this rank holds, alone or with its neighbours."""
        return EngineOfRank.of(self.comm, chosen(self.config.sampler.tensor_parallel))

    @property
    def whole_groups(self) -> bool:
        """Tell whether the responses of a group are drawn and graded together."""
        return self.sampler.side_by_side is None or (self.own is not None and self.own.of_groups)

    def collect(self, start: int, step: int, before: int, metrics: StepMetrics) -> Rollout:
        """Draw prompts from number `start` until the first `prompts_per_step` mixed groups in prompt order are known,
        or `max_rounds` times as many prompts are graded. `before`: the prompts that the step before consumed.

        Groups whose responses are all right or all wrong have no advantage and are dropped, unless `every_group`. What
        is under way beyond the last group taken is given up. Raises, on all ranks: NoMixedGroups, Diverged when the
        policy has broken, Stopped when one of them was asked to stop, RunFailed when rewards of a user's own fail on
        more than half of the responses to the first `prompts_per_step` prompts.
        """
        train, engine, margin = self.config.train, self.engine, self.config.sampler.margin
        count, size = train.prompts_per_step, train.samples_per_prompt
        # A sampler whose responses join those under way is given prompts one by one.
        block = math.ceil(count / 4) if self.sampler.side_by_side is None else 1
        cap = count if self.every_group else count * train.max_rounds
        choice = DynamicSampling(start, count, cap, before, margin, size, block, self.every_group)
        shared = PromptQueue(engine.count, size, self.sampler.side_by_side, self.whole_groups)
        failures: list[str] = []
        with closing(InFlight(self, step, metrics)) as in_flight:
            while not choice.complete:
                for prompts in chain(choice.blocks(), [range(0)]):  # the last for what has waited for room
                    shared.add(prompts)
                    in_flight.add(shared.deal()[engine.index])
                for part, rewards, failed in self._verdicts(in_flight, metrics):
                    choice.grade(part // size, rewards)
                    shared.ended([part])
                    failures += failed if part // size < start + count else ()
                check_failures(failures, count * size)
                in_flight.give_up(shared.give_up(choice.end))
        taken_numbers, end = set(choice.taken), choice.end
        own_parts = [
            (part, group if part // size in taken_numbers else group.without_logprobs())
            for part, group in in_flight.groups.items()
            if part < end * size
        ]
        parts = sorted(self._gather(own_parts, metrics), key=itemgetter(0))
        drawn_groups = [  # each put together from its parts
            Group.joined([group for _, group in same]) for _, same in groupby(parts, key=lambda part: part[0] // size)
        ]
        groups = [group for group in drawn_groups if group.prompt.number in taken_numbers]
        rollout = Rollout(groups, drawn_groups, choice.start + choice.added - end, self.own.names if self.own else ())
        if not rollout.groups:
            raise NoMixedGroups(rollout, step, [group for _, group in sorted(in_flight.groups.items())[:_EXAMPLES]])
        return rollout

    def _verdicts(self, in_flight: "InFlight", metrics: StepMetrics) -> list[Verdicts]:
        """Parts that any rank has graded since the last look."""
        broken: Diverged | None = None
        own_verdicts: list[Verdicts] | None
        try:
            own_verdicts = [(part, group.rewards.tolist(), group.failures) for part, group in in_flight.graded()]
        except Diverged as error:
            own_verdicts, broken = None, error
        verdicts, stop_requests = zip(*self._gather([(own_verdicts, self.asked())], metrics), strict=True)
        if None in verdicts:
            raise broken or Diverged("the policy has diverged on another rank")
        if any(stop_requests):
            raise signals.Stopped
        return list(chain(*verdicts))

    def _gather(self, values: list[T], metrics: StepMetrics) -> list[T]:
        """Join the values of all ranks."""
        if self.comm is None:
            return values
        with metrics.time("gather"):
            return list(chain(*self.comm.all_gather_object(values)))


class InFlight:
    """The parts (see `PromptQueue`) that this rank has in flight in a step: at the sampler, then at the grader, in a
    thread beside.

    groups: part -> its graded responses; none on a rank whose engine another speaks for. lost: by the sampler's queue,
    once closed. tokens: part -> those of what it returned.
    """

    def __init__(self, collector: Collector, step: int, metrics: StepMetrics):
        self.collector, self.step, self.metrics = collector, step, metrics
        train = collector.config.train
        self.size = train.samples_per_prompt
        params = SamplingParams(
            n=self.size if collector.whole_groups else 1,
            temperature=train.temperature,
            max_new_tokens=train.max_new_tokens,
            stop=collector.stream.stop,
        )
        self.seconds = _ALONE if collector.comm is None else _MEETING
        self.queue = collector.sampler.start(params)
        self.aside = collector.aside()
        self.sampled: dict[int, Prompt] = {}
        self.judged: list[Future[list[tuple[int, Group]]]] = []
        self.groups: dict[int, Group] = {}

    def add(self, parts: Sequence[int]) -> None:
        """Start the parts that this engine is to draw; there may be none."""
        if not parts:
            return
        seed, take = self.collector.config.seed, self.collector.stream.take
        prompts = {part: take(part // self.size, 1)[0] for part in parts}
        self.sampled |= prompts
        self.queue.add(
            [
                Job(part, prompt.tokens, derive(seed, "rollout", self.step, prompt.number), part % self.size)
                for part, prompt in prompts.items()
            ]
        )

    def graded(self) -> list[tuple[int, Group]]:
        """Return the parts that were graded since the last call; wait a moment for some.

        While the sampler has work it is not kept waiting by the grader. When it has none, all verdicts that come in
        time are awaited: with them, what to add is known best.
        """
        if self.sampled:
            with self.metrics.time("gen"):
                ended = [
                    (part, self.sampled.pop(part, None), responses)
                    for part, responses in self.queue.finished(self.seconds)
                ]
            parts_to_grade = [(part, prompt, rows) for part, prompt, rows in ended if prompt]
            if parts_to_grade and self.collector.engine.leads:
                self.judged.append(self.aside.submit(self._grade, parts_to_grade))
        with self.metrics.time("reward"):
            wait(self.judged, 0 if self.sampled else self.seconds)
        ready_futures = [future for future in self.judged if future.done()]
        self.judged = [future for future in self.judged if future not in ready_futures]
        graded = list(chain(*(future.result() for future in ready_futures)))
        self.groups |= graded
        return graded

    def give_up(self, parts: Sequence[int]) -> None:
        """Give up those parts that are at the sampler of this rank."""
        own_parts = [part for part in parts if self.sampled.pop(part, None)]
        if own_parts:
            self.queue.drop(own_parts)

    def close(self) -> None:
        """Give up what is still under way."""
        self.queue.abort()
        self.aside.shutdown(cancel_futures=True)

    def _grade(self, ended: Sequence[tuple[int, Prompt, list[Response]]]) -> list[tuple[int, Group]]:
        """Grade parts: groups with their rewards."""
        texts = self.collector.stream.decode([row for _, _, responses in ended for row in responses])
        own_rewards, groups = self.collector.own, []
        if own_rewards is None:
            golds = [prompt.problem.answer for _, prompt, responses in ended for _ in responses]
            judged: Iterator[Any] = iter(self.collector.grader.grade(list(zip(golds, texts, strict=True))))
        else:
            remaining = iter(texts)
            judged = iter(
                own_rewards.score(
                    [(prompt.problem, list(islice(remaining, len(responses)))) for _, prompt, responses in ended]
                )
            )
        for part, prompt, responses in ended:
            judgements = list(islice(judged, len(responses)))
            if own_rewards is None:
                rewards = np.array([verdict.correct for verdict in judgements], dtype=np.float32)
                group = Group(prompt, responses, rewards, given_up(verdict.reason for verdict in judgements))
            else:
                group = Group(
                    prompt,
                    responses,
                    np.array([own_rewards.mean(scored.rewards) for scored in judgements], dtype=np.float32),
                    sum(scored.given_up for scored in judgements),
                    named=np.array([scored.rewards for scored in judgements], dtype=np.float32),
                    weights=own_rewards.weights,
                    failures=tuple(scored.failure for scored in judgements if scored.failure),
                    figures=tuple(scored.figures for scored in judgements),
                )
            groups.append((part, self._noisy(part, group)))
        return groups

    def _noisy(self, part: int, group: Group) -> Group:
        """The group with the rewards of a share of its responses flipped, each by a draw of its own."""
        config = self.collector.config
        if not (share := config.data.flip_rewards):
            return group
        samples = range(part % self.size, part % self.size + len(group.responses))
        keys = [derive(config.seed, "flip reward", self.step, group.prompt.number, sample) for sample in samples]
        flips = np.array([key % 2**64 < share * 2**64 for key in keys])
        rewards, named = np.where(flips, 1 - group.rewards, group.rewards), group.named
        if named is not None:
            named = np.where(flips[:, None], 1 - named, named)
        return replace(group, rewards=rewards, scores=group.rewards, named=named)
