import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tepo.common.errors import UserError
from tepo.common.files import file_digest
from tepo.policy.model.model_location import resolve
from tepo.store.checkpoint_files import read_progress, write_progress
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.commands import tepo
from tests.support.runs import interrupted, small

REFUSED = "error: the weights are not those of config.json: half a download"
NORM = "model.norm.weight"


VLLM, DEEPSPEED, PEFT = pytest.mark.vllm, pytest.mark.deepspeed, pytest.mark.peft


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
    assert REFUSED in said
    assert NORM in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [(), pytest.param(("model.lora_rank=4",), marks=PEFT)], ids=["all", "adapters"])
def test_a_run_does_not_go_on_from_a_part_of_its_checkpoint(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Whose digests somebody has brought up to date."""
    config = small(tmp_path, *words)
    run = interrupted(config, 1)
    folder = run.checkpoint(run.checkpoints()[-1])
    name = "adapter/adapter_model.safetensors" if words else "model.safetensors"
    tensors = load_file(folder / name)
    del tensors[next(iter(tensors))]
    save_file(tensors, folder / name, {"format": "pt"})
    progress = read_progress(folder)
    progress["files"][name], progress["sha256"][name] = (folder / name).stat().st_size, file_digest(folder / name)
    write_progress(folder, progress)
    with pytest.raises(UserError, match="or some are missing" if words else "1 missing"):
        train(Run(config))
    assert not run.finished()
