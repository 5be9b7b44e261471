import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.objectives import load_objective
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.lora import full_state
from tepo.store.run_folder import RunFolder, final_model
from tepo.training import setup
from tepo.training.loop import train
from tepo.training.preflight import check_backends, check_settings
from tepo.training.run import Run
from tests.support.runs import assert_same_run, interrupted, lasting, small

LORA = ("model.lora_rank=4", "train.learning_rate=1e-3")
BFLOAT16 = ("model.dtype=bfloat16", "objective=grpo")


def test_what_cannot_be_is_refused_before_a_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no adapters to scale"):
        check_settings(Run(compose(["model.lora_alpha=16"])))
    with pytest.raises(UserError, match="DeepSpeed trains all weights here"):
        check_backends(Run(compose(["model.lora_rank=4", "engine=deepspeed"])))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="peft is not installed") as caught:
        check_backends(Run(compose(["model.lora_rank=4"])))
    assert "lora" in caught.value.fix


@pytest.mark.peft
@pytest.mark.parametrize("words", [(), BFLOAT16], ids=["float32", "bfloat16"])
def test_a_checkpoint_is_the_merged_model_with_its_adapters_and_resumes_bit_for_bit(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    config = small(tmp_path / "stopped", *LORA, *words)
    for step in (1, 2):
        interrupted(config, step)
    whole = small(tmp_path / "through", *LORA, *words)

    def keep(step: int, row: dict[str, Any]) -> None:
        """What a finished run keeps no more."""
        if step == 3:
            for run in (RunFolder.of(config), RunFolder.of(whole)):
                if run.started() and not run.finished():
                    shutil.copytree(run.checkpoint(2), tmp_path / run.path.parent.name / "kept")

    stopped, through = train(Run(config), keep), train(Run(whole), keep)
    assert_same_run(stopped, through)
    last = final_model(stopped)
    for name in ("adapter/adapter_model.safetensors", "optimizer/00000-00000.safetensors"):
        one, saved = (load_file(tmp_path / store / "kept" / name) for store in ("stopped", "through"))
        assert one.keys() == saved.keys()
        assert all(torch.equal(value, saved[key]) for key, value in one.items())

    again = setup.open_policy(config, last, torch.device("cpu"))  # what training would go on with
    merged, base = (load_policy(path, dtype=config.model.dtype) for path in (str(last), "package:laptop"))
    assert merged.model.state_dict().keys() == base.model.state_dict().keys()
    for name, value in full_state(again.model).items():
        assert torch.equal(value, merged.model.state_dict()[name])
        moved = not torch.equal(value, base.model.state_dict()[name])
        assert moved == name.endswith("proj.weight")  # embeddings, norms and biases are frozen
    gap = max(row["training/rollout_logprobs_diff_mean"] for row in lasting(stopped))
    assert gap < (1e-5 if config.model.dtype == "float32" else 0.01)


@pytest.mark.peft
def test_the_initial_policy_is_the_trained_one_without_its_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*LORA, "objective=grpo", "objective.beta=0.1")
    config = small(tmp_path / "off", *words)
    off = lasting(train(Run(config)))
    copy = load_policy("package:laptop").model.requires_grad_(False)
    monkeypatch.setattr(setup, "initial_policy", lambda config, objective, policy: copy)
    second = lasting(train(Run(small(tmp_path / "copy", *words))))
    assert load_objective(config.objective).needs.initial_policy
    assert off[-1]["actor/kl_loss"] > 1e-4
    for one, other in zip(off, second, strict=True):
        for key in ("actor/kl_loss", "actor/grad_norm", "critic/score/mean"):
            assert one[key] == pytest.approx(other[key], rel=1e-4)


@pytest.mark.peft
@pytest.mark.slow
def test_adapters_learn(tmp_path: Path) -> None:
    words = ("train.steps=12", "train.prompts_per_step=32", "train.samples_per_prompt=8", "train.mini_batch_prompts=8")
    rewards = [row["critic/score/mean"] for row in RunFolder(train(Run(small(tmp_path, *LORA, *words)))).metrics()]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
