"""Rollouts that wait for their step. Beside the updates the embedded sampler draws them on a copy of the weights; its
passes and the trainer's are made in a fixed order."""

import contextlib
import os
import shutil
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from tepo.common import signals
from tepo.common.errors import Diverged, RunFailed
from tepo.config.run_config import RunConfig
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model.load_policy import load_policy
from tepo.problems.grader import Grader, GraderOptions
from tepo.sampling import backends
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.store.early_stop import EarlyStop
from tepo.store.run_folder import RunFolder
from tepo.training import loop
from tepo.training.loop import train
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.collector import Collector
from tepo.training.rollout.prefetch import BehaviorWeights
from tepo.training.rollout.prompt_stream import PromptStream
from tepo.training.rollout.run_progress import read_pending
from tepo.training.rollout_batch import FlatRollout, Group, even_chunks
from tepo.training.run import Run
from tests.support.runs import COPYING, interrupted, lasting, own_backends, tiny, weights

CPU = torch.device("cpu")
RATE = "train.learning_rate=1e-3"
OLD = ("train.steps=5", "train.staleness=2", RATE, "train.prompts_per_step=2", "train.mini_batch_prompts=1")
WORDS = ("train.steps=3", RATE, "train.staleness=1", "train.max_new_tokens=16")
SECONDS = 60  # for what must come


class Kept:
    """A run with every checkpoint that it wrote on its way."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, tiny(folder / "runs", *OLD)
        self.run = RunFolder.of(self.config)
        train(Run(self.config), self.keep)
        self.keep(self.config.train.steps + 1, {})

    def keep(self, step: int, row: dict) -> None:
        """That of the step before; the last one is being written."""
        if step > 1:
            shutil.copytree(self.run.checkpoint(step - 1), self.checkpoint(step - 1))

    def checkpoint(self, step: int) -> Path:
        return self.folder / "kept" / str(step)

    def pending(self, step: int) -> dict[int, FlatRollout]:
        stream = PromptStream(self.config, load_policy(self.config.model.path).tokenizer)
        return {waiting.step: waiting for waiting in read_pending(self.checkpoint(step), stream, CPU)}


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("stale"))


def tokens(groups: list[Group]) -> list[tuple[int, list[list[int]], list[float]]]:
    return [
        (group.prompt.number, [response.tokens.tolist() for response in group.responses], group.rewards.tolist())
        for group in groups
    ]


@pytest.mark.parametrize(("step", "finished"), [(3, 0), (4, 1)])
def test_a_step_trains_what_the_policy_of_two_steps_before_drew(stale: Kept, step: int, finished: int) -> None:
    """Step t: the policy after max(0, t - 3) steps. The rollouts lie in the checkpoint after the step that drew them.
    Sampled again from the weights of that policy, they have the same tokens, and log-probs that another's lack."""
    found = stale.pending(finished + 1)[step]
    policy = load_policy(str(stale.checkpoint(finished)) if finished else stale.config.model.path)
    consumed = [int(row["rollout/prompts"]) for row in stale.run.metrics()][: step - 1]
    with Grader(GraderOptions()) as grader:
        stream, sampler = PromptStream(stale.config, policy.tokenizer), TorchSampler(policy.model, policy.tokenizer)
        collector = Collector(stale.config, stream, sampler, grader, None)
        again = collector.collect(sum(consumed), step, consumed[-1], StepMetrics())
    assert tokens(found.groups) == tokens(again.groups)
    np.testing.assert_array_equal(found.sampler_logprobs, FlatRollout(again.groups, CPU).sampler_logprobs)

    def apart(folder: Path | str) -> float:
        """The old values from those of a policy."""
        with torch.no_grad():
            own = token_statistics(load_policy(str(folder)).model, found.pack(range(found.sequence_count)))
        differences = (own.logprobs - found.old_logprobs, own.entropies - found.old_entropies)
        return max(float(values.abs().max()) for values in differences)

    assert apart(policy.model.name_or_path) < 1e-4
    assert apart(stale.checkpoint(finished + 1)) > 1e-2


def test_the_last_steps_draw_nothing_beyond_the_end(stale: Kept) -> None:
    assert [sorted(stale.pending(step)) for step in range(1, 6)] == [[2, 3], [3, 4], [4, 5], [5], []]
    assert not (stale.checkpoint(5) / "rollouts").exists()
    rows = stale.run.metrics()
    drawn = np.cumsum([row["rollout/prompts"] for row in rows])
    assert [row["training/prompts"] for row in rows] == [drawn[2], drawn[3], drawn[4], drawn[4], drawn[4]]
    assert [row["training/staleness"] for row in rows] == [0, 1, 2, 2, 2]
    assert rows[0]["training/stale_log_ratio"] < 1e-5


def test_the_first_update_has_the_weights_of_its_own_step(stale: Kept) -> None:
    """The ratio's numerator is the policy after the step before: not the one that sampled, and no pass kept of it."""
    step = 3
    waiting = stale.pending(step - 1)[step]
    first = waiting.sequences_of(even_chunks(waiting.group_count, 2)[0])  # of two mini-batches
    with torch.no_grad():
        now = token_statistics(load_policy(str(stale.checkpoint(step - 1))).model, waiting.pack(first)).logprobs
    moved = float((now - waiting.old_logprobs[waiting.tokens_of(first)]).abs().mean())
    assert stale.run.metrics()[step - 1]["training/stale_log_ratio"] == pytest.approx(moved, rel=1e-3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for runs with `sampler=near` and `sampler=far`."""
    folder = tmp_path_factory.mktemp("ahead")
    own = [(backends, "sampler", name, COPYING.format(remote=name == "far")) for name in ("near", "far")]
    with own_backends(folder, *own):
        yield folder / "runs"


def raising(at: int, error: BaseException) -> Callable[[int], None]:
    """Raise an error when a step is there first."""
    left = [error]

    def look(step: int) -> None:
        if step == at and left:
            raise left.pop()

    return look


class Order:
    """Holds the sampling beside a step and its updates until the other one is done.

    first: which comes first. drawn: the steps whose rollouts were sampled beside another step."""

    def __init__(self, config: RunConfig, first: Literal["sampling", "training"], patch: pytest.MonkeyPatch):
        self.train, self.first = config.train, first
        self.trained, self.sampled = defaultdict(threading.Event), defaultdict(threading.Event)  # type: Any, Any
        self.drawn: list[int] = []
        self.on_update: Callable[[int], None] = lambda step: None
        self.after_update: Callable[[int], None] = lambda step: None
        self.on_sample: Callable[[int], None] = lambda step: None
        self._update, self._collect = loop.update, Collector.collect
        patch.setattr(loop, "update", self.update)
        patch.setattr(Collector, "collect", lambda collector, *arguments: self.collect(collector, *arguments))

    def update(self, updater: Any, rollout: Any, step: int, recorder: StepMetrics) -> dict[str, float]:
        last = min(step + self.train.staleness, self.train.steps)
        if self.first == "sampling" and last > max(self.drawn, default=1):
            assert self.sampled[last].wait(SECONDS), "it is not sampled beside the updates"
        try:
            self.on_update(step)
            metrics = self._update(updater, rollout, step, recorder)
            self.after_update(step)
            return metrics
        finally:
            self.trained[step].set()

    def collect(self, collector: Collector, start: int, step: int, before: int, recorder: StepMetrics) -> Any:
        beside = threading.current_thread() is not threading.main_thread()
        if beside and self.first == "training":
            assert self.trained[max(1, step - self.train.staleness)].wait(SECONDS)
        try:
            self.on_sample(step)
            return self._collect(collector, start, step, before, recorder)
        finally:
            self.drawn += [step] * beside
            self.sampled[step].set()


def comparable(folder: Path) -> tuple[Any, ...]:
    run = RunFolder(folder)
    manifest = run.manifest()
    return lasting(folder), weights(folder), manifest["status"], manifest["steps"], run.ending()


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (("objective=grpo", "train.staleness=2"), "sampling"),
        (("objective=tis", "model.dtype=bfloat16", "train.learning_rate=1e-4", "train.steps=2"), "training"),
    ],
    ids=["two steps", "truncated"],
)
def test_a_run_that_draws_beside_its_updates_is_that_which_draws_in_turn(
    store: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], first: Any
) -> None:
    usual = train(Run(tiny(store, *WORDS, *words, "sampler=near")))
    config = tiny(store, *WORDS, *words, "sampler=far")
    order = Order(config, first, monkeypatch)
    assert comparable(train(Run(config))) == comparable(usual)
    assert order.drawn == [*range(2, config.train.steps + 1)]
    *beside, last = RunFolder.of(config).metrics()
    for row in beside[: -config.train.staleness + 1 or None]:
        assert 0 < row["timing_s/gen_beside"] < row["timing_s/step"]
    assert "timing_s/gen_beside" not in last  # there is nothing left to draw


def test_old_values_of_other_weights_than_those_that_sampled_are_found(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the learning rate of real models. What a rollout is compared with is the policy that sampled it: with the
    weights after the updates, the gap has grown."""
    monkeypatch.setattr(BehaviorWeights, "back", lambda behavior: contextlib.nullcontext())
    with pytest.raises(RunFailed, match="sampler and trainer disagree"):
        train(Run(tiny(store, *WORDS, "train.learning_rate=1e-6", "sampler=far")))


@pytest.mark.parametrize("stop", ["failure", "request"])
def test_a_run_that_stopped_in_the_middle_goes_on_to_the_same_bits(
    store: Path, tmp_path: Path, stop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure ends the thread with the run, and what it drew is drawn again; a request waits for the step and its
    rollout."""
    config = tiny(tmp_path, *WORDS, "sampler=far", "train.checkpoint_every=3")
    with monkeypatch.context() as patch:
        order = Order(config, "sampling" if stop == "failure" else "training", patch)
        if stop == "failure":
            order.on_update = raising(2, KeyboardInterrupt())
        else:
            order.on_sample = lambda step: os.kill(os.getpid(), signal.SIGUSR2) if step == 3 else None
        with pytest.raises((KeyboardInterrupt, signals.Stopped)):
            train(Run(config))
    assert not [thread for thread in threading.enumerate() if thread.name == "sampling ahead"]
    assert RunFolder.of(config).checkpoints() == ([2] if stop == "request" else [])
    Order(config, "training", monkeypatch)
    usual = train(Run(tiny(store, *WORDS, "sampler=near")))
    assert comparable(train(Run(config))) == comparable(usual)


def ending(store: Path, sampler: str, first: Any, errors: dict[str, partial]) -> tuple[Any, ...]:
    """What is left of a run whose sampling of step 4 or third update breaks off."""
    config = tiny(store, *WORDS, "train.steps=4", f"sampler={sampler}")
    with pytest.MonkeyPatch.context() as patch:
        order = Order(config, first, patch)
        if "sample" in errors:
            order.on_sample = raising(4, errors["sample"]())
        if "update" in errors:
            order.after_update = raising(3, errors["update"]())
        return comparable(train(Run(config)))


NO_GROUPS = partial(EarlyStop, "collapse", 4, "all responses were wrong")  # of the policy that draws
NO_NUMBERS, NO_LOSS = partial(Diverged, "probabilities are not numbers"), partial(Diverged, "the loss is nan")


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("errors", "kind", "step", "first"),
    [
        ({"sample": NO_GROUPS}, "collapse", 4, "sampling"),
        ({"sample": NO_NUMBERS}, "diverged", 2, "sampling"),
        ({"update": NO_LOSS}, "diverged", 3, "training"),
        ({"sample": NO_NUMBERS, "update": NO_LOSS}, "diverged", 2, "training"),  # in turn the sampler comes first
    ],
    ids=["no groups", "sampler", "updates", "both"],
)
def test_training_ends_where_it_would_in_turn(tmp_path: Path, errors: dict, kind: str, step: int, first: Any) -> None:
    """Step 4 is drawn in step 3: by the weights after step 2, which are broken if the sampler says so."""
    near = ending(tmp_path / "near", "near", "training", errors)
    *_, steps, end = near
    assert (end.kind, end.step, steps) == (kind, step, step - 1)
    assert len(near[0]) == step - 1
    assert ending(tmp_path / "far", "far", first, errors) == near


def test_a_run_that_is_killed_before_its_end_draws_no_more(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 4 is drawn in step 2 and has no mixed group; step 3 is still trained."""
    words = (*WORDS, "train.steps=4", "train.staleness=2", "sampler=near")
    killed, whole = (tiny(store / folder, *words) for folder in ("killed", "whole"))
    with monkeypatch.context() as patch:
        Order(killed, "training", patch).on_sample = raising(4, NO_GROUPS())
        interrupted(killed, 2)
    resumed = comparable(train(Run(killed)))
    with monkeypatch.context() as patch:
        Order(whole, "training", patch).on_sample = raising(4, NO_GROUPS())
        assert resumed == comparable(train(Run(whole)))
    *_, steps, end = resumed
    assert (steps, end.kind, end.step) == (3, "collapse", 4)
