"""A rollout: groups are graded while others are still being sampled."""

import threading
from pathlib import Path

import pytest

from tepo.policy.load_policy import load_policy
from tepo.problems.grader import Grader, GraderOptions
from tepo.sampling import torch_sampler
from tepo.sampling.torch_sampler import TorchSampler
from tepo.training import prompt_stream
from tepo.training.prompt_stream import PromptStream
from tepo.training.recorder import Recorder
from tepo.training.rollout import Collector
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
