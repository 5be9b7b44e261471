"""At the learning rate of real models. The sampler is the embedded one, synced as any other."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tepo.common.errors import RunFailed
from tepo.config.run_config import RunConfig
from tepo.policy.model.lora import adapters_off, full_state
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.store.run_folder import RunFolder
from tepo.training import setup
from tepo.training.engine import torch_engine
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.runs import interrupted, tiny

WORDS = ("train.learning_rate=1e-6", "train.prompts_per_step=2", "train.mini_batch_prompts=1")


@pytest.fixture(autouse=True)
def own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler gets a model of its own, as beside an engine that shards the trainer's."""
    monkeypatch.setattr(Run, "shares_weights", False)
    torch.set_num_threads(1)


def leave_out(number: int, patch: pytest.MonkeyPatch) -> None:
    """A sync, counted from 1 at the end of step 1 of this process."""
    real, syncs = TorchSampler.sync, itertools.count(1)

    def sync(self: TorchSampler, weights: Mapping[str, Tensor]) -> None:
        if next(syncs) != number:
            real(self, weights)

    patch.setattr(TorchSampler, "sync", sync)


def failure(config: RunConfig) -> str:
    with pytest.raises(RunFailed, match="sampler and trainer disagree") as caught:
        train(Run(config))
    return str(caught.value)


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_sync_left_out_is_found_at_the_next_rollout(
    tmp_path: Path, staleness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(2, monkeypatch)
    text = failure(tiny(tmp_path, *WORDS, f"train.staleness={staleness}", "train.steps=4"))
    assert f"step {3 + staleness}" in text
    assert "weights not synced: the sampler still has the weights of the sync before" in text


@pytest.mark.peft
def test_adapters_that_were_not_merged_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(model: torch.nn.Module) -> dict[str, Tensor]:
        with adapters_off(model):
            return full_state(model)

    monkeypatch.setattr(torch_engine, "full_state", without)
    assert "step 2" in failure(tiny(tmp_path, *WORDS, "model.lora_rank=4"))


def test_a_first_sync_that_is_stale_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler is opened with the weights from before the last step: of a run that goes on, and of a new one."""
    config = tiny(tmp_path, *WORDS)
    interrupted(config)
    make: Any = setup.make_sampler
    monkeypatch.setattr(setup, "make_sampler", lambda c, policy, source, x: make(c, policy, "package:laptop", x))
    folder = RunFolder.of(config).checkpoint(1)
    assert "step 1" in failure(tiny(tmp_path, *WORDS, f"model={folder}"))
    assert "step 2" in failure(config)


def test_a_killed_run_decides_as_one_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared is the gap of the run's first rollout."""
    config = tiny(tmp_path, *WORDS)
    interrupted(config)
    leave_out(1, monkeypatch)
    assert "step 3" in failure(config)


def test_no_alarm_where_nothing_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = train(Run(tiny(tmp_path, *WORDS, "model.dtype=bfloat16", "objective=grpo", "train.steps=2")))
    assert len(RunFolder(folder).metrics()) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2  # the first prompt
