"""Packages of the extras, or a part of a model, are not there."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tepo.policy.model.model_location import resolve
from tests.support.commands import python, tepo
from tests.support.runs import SMALL

OTHERS = ("accelerate", "bitsandbytes", "datasets", "deepspeed", "gguf", "lm_eval", "peft", "sentencepiece", "tiktoken")
OTHERS += ("tensorboard", "trackio", "trl", "vllm", "wandb")
CODE = f"""
import json, sys
sys.modules.update(dict.fromkeys({OTHERS}))
from tepo_cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""
NORM = "model.norm.weight"
VLLM, DEEPSPEED = pytest.mark.vllm, pytest.mark.deepspeed


def test_commands_take_no_package_of_an_extra(tmp_path: Path) -> None:
    commands = [
        ("train", *SMALL, "train.steps=1"),
        ("eval", "add3", "--model", "package:laptop", "--limit", "5"),
        ("table", "panel-e", "--records"),
    ]
    done = python("-c", CODE, json.dumps([(*words, "--store", "runs") for words in commands]), cwd=tmp_path)
    assert "GRPO/DAPO" in done.stdout  # the last one's


@pytest.mark.parametrize(
    "words",
    [
        "train model=broken train.steps=1 objective=grpo objective.beta=0.1",
        pytest.param("train model=broken train.steps=1 sampler=vllm", marks=VLLM),
        pytest.param("train model=broken train.steps=1 engine=deepspeed engine.zero_stage=3", marks=DEEPSPEED),
        "train train.steps=1 objective=distillation model.teacher=broken",
        "eval add3 --model broken",
        "chat broken",
        pytest.param("eval add3 --model broken --backend vllm --data-parallel 2", marks=VLLM),
        "ablate panel-e --scale laptop --set model=broken",
    ],
)
def test_nothing_is_trained_or_measured_on_a_part_of_a_model(tmp_path: Path, words: str) -> None:
    shutil.copytree(resolve("package:laptop"), tmp_path / "broken")
    tensors = load_file(tmp_path / "broken/model.safetensors")
    del tensors[NORM]
    save_file(tensors, tmp_path / "broken/model.safetensors", {"format": "pt"})
    given = [word.replace("=broken", f"={tmp_path}/broken") for word in words.split()]
    said = tepo(*given, "--store", tmp_path / "runs", cwd=tmp_path, code=2).stderr
    assert "error: the weights are not those of config.json: half a download" in said
    assert NORM in said
    assert not (tmp_path / "runs").exists()
