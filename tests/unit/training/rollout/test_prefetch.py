"""The sampler is the embedded one on a copy of the weights; its passes and the trainer's are made in a fixed order."""

import contextlib
import itertools
import os
import shutil
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tepo.common import signals
from tepo.common.errors import Diverged, RunFailed
from tepo.config.run_config import RunConfig
from tepo.sampling import backends
from tepo.store.early_stop import EarlyStop
from tepo.store.run_folder import RunFolder
from tepo.training import loop
from tepo.training.loop import train
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.collector import Collector
from tepo.training.rollout.prefetch import BehaviorWeights
from tepo.training.run import Run
from tests.support.runs import COPYING, interrupted, lasting, own_backends, small, weights

WORDS = ("train.steps=3", "train.learning_rate=1e-3", "train.staleness=1")
WORDS += ("train.prompts_per_step=4", "train.mini_batch_prompts=2", "train.max_new_tokens=30")
HALF = ("model.dtype=bfloat16", "train.learning_rate=1e-4")
SECONDS = 60  # for what must come


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for runs with `sampler=near` and `sampler=far`. Those that nothing disturbs are made once."""
    folder = tmp_path_factory.mktemp("ahead")
    own = [(backends, "sampler", name, COPYING.format(remote=name == "far")) for name in ("near", "far")]
    with own_backends(folder, *own):
        yield folder / "runs"


def raising(at: int, error: BaseException, once: bool = False) -> Callable[[int], None]:
    """Raise an error at a step, each time or at its first."""
    left = [error] if once else itertools.repeat(error)

    def look(step: int) -> None:
        if step == at and (found := next(iterator, None)):
            raise found

    iterator = iter(left)
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


def in_turn(store: Path, *words: str) -> Path:
    return train(Run(small(store, *WORDS, *words, "sampler=near")))


@pytest.mark.parametrize(
    ("words", "first"),
    [
        pytest.param(("objective=tepo",), "sampling", id="tepo"),
        pytest.param(("objective=grpo", "train.staleness=2", "train.steps=4"), "sampling", id="two steps"),
        pytest.param(("objective=grpo", "train.staleness=2", "train.steps=4"), "training", id="updates first"),
        pytest.param(("objective=tis", *HALF), "training", id="truncated"),
    ],
)
def test_a_run_that_draws_beside_its_updates_is_that_which_draws_in_turn(
    store: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], first: Any
) -> None:
    usual = in_turn(store, *words)
    config = small(store, *WORDS, *words, "sampler=far")
    shutil.rmtree(RunFolder.of(config).path, ignore_errors=True)
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
        train(Run(small(store, *WORDS, "train.learning_rate=1e-6", "sampler=far")))


def test_a_run_that_failed_in_the_middle_goes_on_to_the_same_bits(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ends with the run, and what it drew is drawn again."""
    config = small(tmp_path, *WORDS, "sampler=far", "train.checkpoint_every=2")
    with monkeypatch.context() as patch:
        order = Order(config, "sampling", patch)
        order.on_update = raising(2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            train(Run(config))
    assert not [thread for thread in threading.enumerate() if thread.name == "sampling ahead"]
    Order(config, "sampling", monkeypatch)
    assert comparable(train(Run(config))) == comparable(in_turn(store))


def test_a_run_that_is_asked_to_stop_finishes_the_step_and_its_rollout(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path, *WORDS, "sampler=far", "train.checkpoint_every=3")
    with monkeypatch.context() as patch:
        order = Order(config, "training", patch)
        order.on_sample = lambda step: os.kill(os.getpid(), signal.SIGUSR2) if step == 3 else None
        with pytest.raises(signals.Stopped):
            train(Run(config))
    assert RunFolder.of(config).checkpoints() == [2]
    Order(config, "training", monkeypatch)
    assert comparable(train(Run(config))) == comparable(in_turn(store))


def ending(store: Path, sampler: str, first: Any, break_off: Callable[[Order], None]) -> tuple[Any, ...]:
    config = small(store, *WORDS, "train.steps=4", f"sampler={sampler}")
    with pytest.MonkeyPatch.context() as patch:
        break_off(Order(config, first, patch))
        return comparable(train(Run(config)))


def no_groups(order: Order) -> None:
    """Of the policy that draws. A later one might have some."""
    order.on_sample = raising(4, EarlyStop("collapse", 4, "all responses were wrong"), once=True)


def broken_sampler(order: Order) -> None:
    order.on_sample = raising(4, Diverged("the sampler's probabilities are not numbers"))


def broken_both(order: Order) -> None:
    """In turn the sampler comes first, so its weights are the ones that are broken."""
    broken_sampler(order)
    broken_updates(order)


def broken_updates(order: Order) -> None:
    order.after_update = raising(3, Diverged("the loss is nan"))


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("break_off", "kind", "step"),
    [
        (no_groups, "collapse", 4),
        (broken_sampler, "diverged", 2),
        (broken_updates, "diverged", 3),
        (broken_both, "diverged", 2),
    ],
)
def test_training_ends_where_it_would_in_turn(tmp_path: Path, break_off: Any, kind: str, step: int) -> None:
    """Step 4 is drawn in step 3: by the weights after step 2, which are broken if the sampler says so."""
    near = ending(tmp_path / "near", "near", "training", break_off)
    *_, steps, end = near
    assert (end.kind, end.step, steps) == (kind, step, step - 1)
    assert len(near[0]) == step - 1
    for first in ("sampling", "training"):
        assert ending(tmp_path / first, "far", first, break_off) == near


def test_a_run_that_is_killed_before_its_end_draws_no_more(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 4 is drawn in step 2 and has no mixed group; step 3 is still trained."""

    words = (*WORDS, "train.steps=4", "train.staleness=2", "sampler=near")
    killed, whole = (small(store / folder, *words) for folder in ("killed", "whole"))
    with monkeypatch.context() as patch:
        no_groups(Order(killed, "training", patch))
        interrupted(killed, 2)
    resumed = comparable(train(Run(killed)))
    with monkeypatch.context() as patch:
        no_groups(Order(whole, "training", patch))
        assert resumed == comparable(train(Run(whole)))
    *_, steps, end = resumed
    assert (steps, end.kind, end.step) == (3, "collapse", 4)
