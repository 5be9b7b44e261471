"""Every row, the reference runs, and models of every family."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tepo.objectives import load_objective, names
from tepo.store.run_folder import RunFolder, final_model
from tepo.training.loop import train
from tepo.training.run import Run
from tests.integration.own_model import save_family, write_words
from tests.reference.runs import recorded_hashes, reference_runs, trained_hashes
from tests.support.runs import small

pytestmark = pytest.mark.disaster

GAPS = {"float32": 1e-5, "bfloat16": 0.02}  # a hundredth and a fifth of the bounds that stop a run
FAMILIES = [("qwen2", "float32", False), ("qwen3", "float32", True), ("llama", "bfloat16", True)]  # whether tied
PARTS = {"qwen2": "q_proj.bias", "qwen3": "k_norm.weight", "llama": "embed_tokens.weight"}


def moved(base: Path, checkpoint: Path) -> set[str]:
    """Names of the tensors that training has changed."""
    before, after = (load_file(folder / "model.safetensors") for folder in (base, checkpoint))
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name].to(after[name].dtype), after[name])}


@pytest.mark.parametrize("name", names())
def test_a_row_trains(name: str, tmp_path: Path) -> None:
    taught = ["model.teacher=package:laptop_sparse"] * load_objective(name).needs.teacher_logprobs
    folder = train(Run(small(tmp_path, f"objective={name}", "train.steps=2", *taught)))
    rows = RunFolder(folder).metrics()
    assert len(rows) == 2
    assert all(math.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))
    assert max(row["actor/grad_norm"] for row in rows) > 0
    assert moved(Path("tepo/assets/laptop"), final_model(folder))


@pytest.mark.peft
@pytest.mark.parametrize("name", reference_runs())
def test_a_named_run_ends_with_the_bits_on_record(name: str, tmp_path: Path) -> None:
    """On a kind of CPU without hashes it only has to end."""
    hashes = trained_hashes(name, tmp_path)
    assert hashes == recorded_hashes().get(name, hashes)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "dtype", "tied"), FAMILIES)
def test_a_family_trains(tmp_path: Path, family: str, dtype: str, tied: bool) -> None:
    """Two steps: the second samples with weights that the first has changed."""
    base = tmp_path / family
    save_family(base, family, tied=tied)
    write_words(tmp_path / "words.jsonl")
    words = [f"model={base}", f"data={tmp_path / 'words.jsonl'}", f"model.dtype={dtype}", "objective=grpo"]
    words += ["train.steps=2", "train.prompts_per_step=4", "train.mini_batch_prompts=2", "train.samples_per_prompt=8"]
    run = train(Run(small(tmp_path / "runs", *words, "train.max_new_tokens=12", "train.max_rounds=4")))
    rows, checkpoint = RunFolder(run).metrics(), final_model(run)
    assert len(rows) == 2
    for row in rows:
        assert 0 < row["critic/score/mean"] < 1
        assert row["training/rollout_logprobs_diff_mean"] < GAPS[dtype]
        assert row["actor/grad_norm"] > 0
    assert "model.embed_tokens.weight" in moved(base, checkpoint)
    # of the others a step in bfloat16 is lost in the rounding of a checkpoint
    assert any(PARTS[family] in name for name in moved(base, checkpoint))
    # one matrix in the file and in the loaded model, where the model has one; else two
    assert ("lm_head.weight" in load_file(checkpoint / "model.safetensors")) != tied
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert (model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()) == tied
