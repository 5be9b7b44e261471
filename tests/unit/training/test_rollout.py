"""A rollout: groups are graded while others are still being sampled."""

import threading
from pathlib import Path

import numpy as np
import pytest

from tepo.policy.loading import load_policy
from tepo.problems.base import Problem
from tepo.problems.grader import Grader, GraderOptions
from tepo.sampling import torch_sampler
from tepo.sampling.base import Response
from tepo.sampling.torch_sampler import TorchSampler
from tepo.training import prompts
from tepo.training.flat import Group
from tepo.training.prompts import Prompt, PromptStream
from tepo.training.recorder import Recorder
from tepo.training.rollout import Collector, Rollout
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
    monkeypatch.setattr(prompts, "_MOST_MADE", 50)
    tokenizer = load_policy("package:laptop").tokenizer
    stream = PromptStream(small(tmp_path, "train.max_rounds=100000000"), tokenizer)
    first, *_, last = stream.take(0, 51)
    assert (last.number, last.problem) == (50, first.problem)
    whole = PromptStream(
        small(tmp_path), tokenizer
    )  # 3 steps x 8 prompts x 2 rounds: the same stream as far as it goes
    assert [prompt.problem for prompt in whole.take(0, 48)] == [prompt.problem for prompt in stream.take(0, 48)]
