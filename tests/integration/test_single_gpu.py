"""The scale of one GPU as a user runs it, on a CPU with a tiny model of the user's own: a study that does not name the
scale, with 8-bit moments and adapters beside plain updates, and a kill in between."""

import csv
import io
from pathlib import Path

import pytest

from tepo.store.run_folder import RunFolder
from tests.integration.commands import started, tepo, until
from tests.integration.own_model import save_family, save_words, write_words
from tests.unit.training.small import write

STUDY = """\
title: what fits on one card
baseline: plain
rows:
  - {label: untrained, base: true}
  - {label: plain, objective: grpo_dapo}
  - {label: 8-bit, objective: tepo, overrides: [engine.optimizer=adamw_8bit]}
  - {label: adapters, objective: tepo, overrides: [model.lora_rank=4, train.learning_rate=1e-3]}
scales:
  paper: {models: [qwen2.5-7b], seeds: [2]}
"""
SMALL = ("train.steps=3", "train.prompts_per_step=4", "train.mini_batch_prompts=2", "train.max_new_tokens=12")
SMALL += ("train.checkpoint_every=1", "sampler=torch", "data.benchmarks=[words:tokens20]")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "experiments/card.yaml", STUDY)
    write_words(tmp_path / "train.jsonl")
    save_words(tmp_path)
    save_family(tmp_path / "tiny", "qwen3")
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return tmp_path


@pytest.mark.disaster
@pytest.mark.bitsandbytes
@pytest.mark.peft
def test_a_study_at_the_scale_of_one_gpu(folder: Path) -> None:
    words = [f"model={folder / 'tiny'}", *SMALL]
    study = ("card", "--scale", "single_gpu", "--data", folder / "train.jsonl", "--store", folder / "runs")
    settings = [part for word in words for part in ("--set", word)]

    planned = tepo("plan", *study, *settings)
    assert "4 runs, 4 to do" in planned.stderr
    assert "RTX 4090" in planned.stderr

    process = started("ablate", *study, *settings, "--format", "csv")
    until(
        lambda: any(len(RunFolder(path.parent).metrics()) >= 2 for path in folder.glob("runs/*/metrics.jsonl")), process
    )
    process.kill()
    done = tepo("ablate", *study, *settings, "--format", "csv")
    table = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {line["row"].rpartition("/")[2] for line in table} == {"untrained", "plain", "8-bit", "adapters"}
    assert "Words, 20 tokens" in done.stdout
    runs = [RunFolder(path.parent) for path in folder.glob("runs/*/metrics.jsonl")]
    assert [len(run.metrics()) for run in runs] == [3, 3, 3]
    configs = [run.config()["full"] for run in runs]
    assert {config["scale"] for config in configs} == {"single_gpu"}
    assert {(config["engine"]["optimizer"], config["model"]["lora_rank"]) for config in configs} == {
        ("adamw", 0),
        ("adamw_8bit", 0),
        ("adamw", 4),
    }
    tepo_rows = [config["objective"] for config in configs if config["objective"]["name"] == "tepo"]
    assert [objective["constants"]["beta"] for objective in tepo_rows] == [1, 1]  # as the scale says
