"""A rollout: groups are graded while others are still being sampled."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tepo.config.schema import RunConfig
from tepo.policy.load_policy import load_policy
from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.problem import Problem
from tepo.randomness import derive
from tepo.sampling import torch_sampler
from tepo.sampling.sampler import Job, Response, SamplingParams
from tepo.sampling.torch_sampler import TorchSampler
from tepo.training import prompt_stream
from tepo.training.flat_rollout import Group
from tepo.training.prompt_stream import Prompt, PromptStream
from tepo.training.recorder import Recorder
from tepo.training.rollout import Collector, Rollout
from tests.unit.evaluation.stand_in import LastBox
from tests.unit.training.small import small


def test_the_first_group_is_graded_before_the_last_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, policy = small(tmp_path, "train.max_rounds=1"), load_policy("package:laptop")
    graded, waited = threading.Event(), []

    class Telling(Grader):
        def grade(self, pairs):  # type: ignore[no-untyped-def]
            verdicts = super().grade(pairs)
            graded.set()
            return verdicts

    class Waiting(torch_sampler.Generation):
        def run(self):  # type: ignore[no-untyped-def]
            if waited:  # not the first batch: one was handed over, and its grading must not need us
                assert graded.wait(timeout=30)
            waited.append(len(self.prompts))
            return super().run()

    monkeypatch.setattr(torch_sampler, "Generation", Waiting)
    with Telling(GraderOptions()) as grader:
        two_at_a_time = TorchSampler(policy.model, policy.tokenizer, max_rows=2 * config.train.samples_per_prompt)
        rollout = Collector(config, PromptStream(config, policy.tokenizer), two_at_a_time, grader, None).collect(
            0, 1, Recorder()
        )
    assert waited == [2, 2, 2, 2]
    monkeypatch.undo()
    with Grader(GraderOptions()) as grader:
        whole = Collector(
            config, PromptStream(config, policy.tokenizer), TorchSampler(policy.model, policy.tokenizer), grader, None
        ).collect(0, 1, Recorder())
    assert [group.prompt.number for group in rollout.groups] == [group.prompt.number for group in whole.groups]
    assert [group.rewards.tolist() for group in rollout.groups] == [group.rewards.tolist() for group in whole.groups]


def group(number: int, rewards: list[int], lengths: list[int], cut: int = 0, timeouts: int = 0) -> Group:
    """A graded group; the first `cut` responses were stopped by the length limit."""
    responses = [
        Response(np.zeros(length, np.int32), np.zeros(length, np.float32), None, place >= cut)
        for place, length in enumerate(lengths)
    ]
    prompt = Prompt(number, Problem(str(number), "", ""), [1])
    return Group(prompt, responses, np.array(rewards, dtype=np.float32), timeouts)


def test_a_rollout_counts_all_that_was_drawn_and_keeps_the_mixed_groups() -> None:
    first, last = group(1, [1, 0, 0, 0], [1, 2, 3, 4], cut=1), group(4, [1, 1, 1, 0], [9, 1, 1, 1], timeouts=1)
    rollout = Rollout()
    rollout.add([group(0, [1] * 4, [2] * 4), first, group(2, [0] * 4, [5] * 4, cut=4, timeouts=2)])
    rollout.add([group(3, [0] * 4, [1] * 4), last])
    assert rollout.groups == [first, last]
    assert rollout.metrics() == pytest.approx(
        {
            "critic/score/mean": (1 + 1 / 4 + 3 / 4) / 5,
            "critic/score/best@4": 3 / 5,
            "critic/score/best@2": (1 + (1 - 3 / 6) + 1) / 5,  # of the 6 pairs, 3 hold the one right answer of `first`
            "critic/rewards/kept_mean": (1 / 4 + 3 / 4) / 2,
            "response_length/mean": (8 + 10 + 20 + 4 + 12) / 20,
            "response_length/max": 9,
            "response_length/clip_ratio": 5 / 20,
            "rollout/prompts": 5,
            "rollout/rounds": 2,
            "rollout/groups_kept": 2,
            "rollout/groups_all_right": 1,
            "rollout/groups_all_wrong": 2,
            "grader/timeouts": 3,
            "perf/sampled_tokens": 54,
        }
    )


@pytest.mark.parametrize(("size", "expected"), [(6, [6, 3]), (2, [2]), (1, []), (16, [16, 8, 4, 2])])
def test_the_best_of_k_is_for_the_group_and_its_halves(size: int, expected: list[int]) -> None:
    rollout = Rollout()
    rollout.add([group(0, [1] + [0] * (size - 1), [1] * size)])
    rollout.groups = rollout.groups or [group(1, [1], [1])]
    names = [name for name in rollout.metrics() if "best@" in name]
    assert names == [f"critic/score/best@{k}" for k in expected]


@dataclass
class Numbers:
    """A stream whose prompt number i is the token i; a response is its text, letter by letter."""

    def take(self, start: int, count: int) -> list[Prompt]:
        return [Prompt(number, Problem(str(number), "", "1"), [number]) for number in range(start, start + count)]

    def decode(self, rows: Sequence[np.ndarray]) -> list[str]:
        return ["".join(map(chr, row)) for row in rows]


@dataclass
class EveryThird:
    """One right answer of four to every third prompt, none to the others; keeps what it was asked."""

    asked: list[dict[str, Any]] = field(default_factory=list)

    def start(self, params: SamplingParams) -> "EveryThird":
        self.params, self.jobs = params, []
        return self

    def add(self, jobs: Sequence[Job]) -> None:
        self.asked.append(
            {"prompts": [job.prompt[0] for job in jobs], "keys": [job.key for job in jobs], "params": self.params}
        )
        self.jobs += jobs

    def finished(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
        if not self.jobs:
            return []
        job = self.jobs.pop()  # in any order
        right = [job.prompt[0] % 3 == 0 and i == 2 for i in range(self.params.n)]
        tokens = [np.array([*map(ord, "\\boxed{1}" if yes else "\\boxed{0}")], dtype=np.int32) for yes in right]
        return [(job.number, [Response(row, np.zeros(len(row), np.float32), None, True) for row in tokens])]

    def abort(self) -> None:
        self.jobs.clear()


@dataclass
class Exchange:
    """What two ranks in two threads hold for each other."""

    rank: int
    slots: list[Any]
    barrier: threading.Barrier
    world_size: int = 2

    def all_gather_object(self, value: Any) -> list[Any]:
        self.slots[self.rank] = value
        self.barrier.wait(timeout=30)
        found = list(self.slots)
        self.barrier.wait(timeout=30)
        return found


def collected(config: RunConfig, comm: Exchange | None = None, start: int = 0) -> tuple[Rollout, EveryThird]:
    sampler = EveryThird()
    collector = Collector(config, Numbers(), sampler, LastBox(), comm)  # type: ignore[arg-type]
    return collector.collect(start, 5, Recorder()), sampler


def test_each_round_draws_as_many_prompts_as_groups_are_missing(tmp_path: Path) -> None:
    """Eight are wanted: 8 prompts give 3 mixed groups, 5 more give 2, 3 more give 1; three rounds are the most."""
    config = small(tmp_path, "train.max_rounds=3", "train.temperature=0.7", "seed=3")
    rollout, sampler = collected(config, start=30)
    assert [call["prompts"] for call in sampler.asked] == [[*range(30, 38)], [*range(38, 43)], [43, 44, 45]]
    assert [group.prompt.number for group in rollout.groups] == [30, 33, 36, 39, 42, 45]
    assert [group.rewards.tolist() for group in rollout.groups] == [[0, 0, 1, 0]] * 6
    assert (rollout.consumed, rollout.rounds, rollout.all_right, rollout.all_wrong) == (16, 3, 0, 10)
    for call in sampler.asked:
        assert call["keys"] == [derive(3, "rollout", 5, number) for number in call["prompts"]]
        assert call["params"] == SamplingParams(n=4, temperature=0.7, max_new_tokens=40)


def test_no_more_is_drawn_when_the_groups_are_there(tmp_path: Path) -> None:
    config = small(tmp_path, "train.max_rounds=20")
    rollout, sampler = collected(config)
    assert len(rollout.groups) == 8
    assert sum(len(call["prompts"]) for call in sampler.asked) == rollout.consumed == 22  # the eighth is number 21


def test_two_ranks_draw_half_each_and_hold_the_same_groups_in_order(tmp_path: Path) -> None:
    """In the last rounds one prompt is missing: then the second rank samples nothing."""
    config = small(tmp_path, "train.max_rounds=20")
    slots, barrier = [None, None], threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        ranks = list(threads.map(lambda rank: collected(config, Exchange(rank, slots, barrier)), range(2)))
    alone, sampler = collected(config)
    for rollout, _ in ranks:
        assert rollout.metrics() == alone.metrics()
        assert [group.prompt.number for group in rollout.groups] == [group.prompt.number for group in alone.groups]
    for rank, (_, own) in enumerate(ranks):
        shares = [call["prompts"][rank::2] for call in sampler.asked]
        assert [call["prompts"] for call in own.asked] == [share for share in shares if share]
    assert len(ranks[1][1].asked) < len(sampler.asked)


def test_answers_that_the_grader_gave_up_are_a_metric(tmp_path: Path) -> None:
    class Towering(Grader):
        """As if the first response of each group were a tower of powers."""

        def grade(self, pairs):  # type: ignore[no-untyped-def]
            return super().grade([("7", r"\boxed{9^{9^{9^9}}}"), *pairs[1:]])

    config, policy = small(tmp_path, "train.max_rounds=1"), load_policy("package:laptop")
    found = []
    for kind in (Grader, Towering):
        with kind(GraderOptions(timeout=0.2, workers=1)) as grader:
            stream, sampler = PromptStream(config, policy.tokenizer), TorchSampler(policy.model, policy.tokenizer)
            found.append(Collector(config, stream, sampler, grader, None).collect(0, 1, Recorder()).metrics())
    assert [metrics["grader/timeouts"] for metrics in found] == [0.0, 8.0] == [0.0, found[1]["rollout/prompts"]]


def test_a_run_that_may_draw_for_ever_makes_its_problems_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_stream, "_MOST_MADE", 50)
    tokenizer = load_policy("package:laptop").tokenizer
    stream = PromptStream(small(tmp_path, "train.max_rounds=100000000"), tokenizer)
    first, *_, last = stream.take(0, 51)
    assert (last.number, last.problem) == (50, first.problem)
    whole = PromptStream(
        small(tmp_path), tokenizer
    )  # 3 steps x 8 prompts x 2 rounds: the same stream as far as it goes
    assert [prompt.problem for prompt in whole.take(0, 48)] == [prompt.problem for prompt in stream.take(0, 48)]
