import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tepo.config.compose import compose
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.shapes import Shape
from tepo.training.resources.memory import Gpus
from tepo.training.resources.node import PROCESS, node_memory
from tepo.training.run import Run
from tests.support.commands import ranks

pytestmark = [pytest.mark.disaster, pytest.mark.deepspeed]

NAMES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SIZES = dict(zip((*NAMES, "vocab_size"), (1024, 2816, 4, 8, 8, 4096), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def said(folder: Path) -> list[dict]:
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-1, 1)
    model.save_pretrained(folder / "model")
    load_policy("package:laptop").tokenizer.save_pretrained(folder / "model")
    for rank in ranks("tests.integration.sharded_run", folder / "model", folder):
        rank.end()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_no_rank_holds_the_model_while_it_is_loaded(said: list[dict]) -> None:
    for one in said:
        assert one["bytes"] > 200e6
        assert one["held"] < 0.55 * one["bytes"]
        assert one["loading"] < min(0.5 * one["bytes"] + 4 * one["largest"], 0.8 * one["bytes"])


def test_the_weights_are_read_a_tensor_at_a_time_and_arrive(said: list[dict]) -> None:
    for one in said:
        assert one["same"]
        assert one["missing"] == []
        assert "lm_head.weight" in one["names"]
        assert one["reading"] < min(3 * one["largest"], 0.25 * one["bytes"])


def test_each_rank_writes_its_own_files_of_a_checkpoint_without_the_others(said: list[dict], folder: Path) -> None:
    for one in said:
        assert one["writing"] < min(0.5 * one["bytes"] + 4 * one["largest"], 0.8 * one["bytes"])
    assert len(list((folder / "checkpoint").glob("*.safetensors"))) >= 2
    written, given = (AutoModelForCausalLM.from_pretrained(folder / name) for name in ("checkpoint", "model"))
    for (name, value), (_, expected) in zip(written.state_dict().items(), given.state_dict().items(), strict=True):
        assert torch.equal(value, expected), name


def test_a_checkpoint_takes_the_main_memory_that_is_planned(said: list[dict]) -> None:
    """Each rank copies its part of weights and moments, and no rank all of the weights; but for a tensor on its way."""
    config = compose(["engine=deepspeed", "engine.zero_stage=3"])
    shape = Shape(*[SIZES[name] for name in NAMES], 128, SIZES["vocab_size"], tied=True)
    planned = node_memory(Run(config, sizes=shape), Gpus(2, 2)) / 2 - PROCESS
    assert planned == pytest.approx(said[0]["bytes"] * 3 / 2, rel=0.01)
    for one in said:
        assert planned * 0.8 < one["saving"] < planned + 2 * one["largest"], one
        assert one["places"] == ["cpu"]  # nothing goes over the GPU
