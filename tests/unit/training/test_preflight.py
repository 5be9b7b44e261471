import importlib.metadata
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch

from tepo.common import gpu_driver
from tepo.common.errors import RunFailed, UserError
from tepo.config.compose import compose
from tepo.config.run_config import TrackerName
from tepo.policy.model.shapes import KNOWN
from tepo.sampling.backends import SamplerOptions, sampler_backend
from tepo.training import setup
from tepo.training.engine.backends import engine_backend
from tepo.training.loop import train
from tepo.training.metrics.trackers import check_trackers
from tepo.training.preflight import check_backends, check_disk, check_fit
from tepo.training.resources.gpu_cards import GIB
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import Gpus
from tepo.training.run import Run
from tepo.training.setup import pick_device
from tests.support.runs import small, write

NOBODY = ("model.path=nobody/nothing", f"model.revision={40 * '0'}")  # which no cache holds


def test_what_is_refused_before_a_folder_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run that the GPU here does not hold, and ranks of which each would train and write the same run by itself."""
    monkeypatch.setattr(setup, "gpus_here", lambda device: Gpus(bytes=1.2 * GIB))
    with pytest.raises(UserError, match="the run does not fit by the plan"):
        train(Run(small(tmp_path)))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(UserError, match="engine=torch trains in one process, and 2 were started"):
        train(Run(small(tmp_path)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sampler=vllm", "vLLM is not installed"),
        ("sampler=vllm_server sampler.servers=[http://127.0.0.1:9]", "does not answer"),
        ("engine=deepspeed engine.optimizer=adamw_8bit", "adamw alone"),
        ("engine.kernels=[flash4]", "flash-attn-4 does not work in float32"),
        ("data=gsm8k_math", "`datasets` is not installed"),
        ("model.lora_rank=4 engine=deepspeed", "DeepSpeed trains all weights here"),
        ("objective=distillation", "objective distillation reads logp_teacher"),
        ("train.samples_per_prompt=1", "a group of one has no advantage with objective tepo"),
        ("train.keep_best=true", "validation chooses the best weights, and it is off"),
    ],
)
def test_what_cannot_be_is_refused_before_the_weights_are_loaded(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TEPO_DATA", raising=False)
    for package in ("vllm", "datasets"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises((UserError, RunFailed), match=message):
        train(Run(small(tmp_path, "objective=tepo", *words.split(), *NOBODY)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("words", "old"), [("engine=deepspeed", "0.18.9"), ("engine.optimizer=adamw_8bit", "0.49.2")])
def test_a_package_that_is_too_old(words: str, old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: old)
    with pytest.raises(UserError, match=rf"{old} is too old"):
        check_backends(Run(compose([words])))


def test_a_disk_that_is_too_small_for_the_checkpoints() -> None:
    """14 bytes of a weight in bfloat16: itself, a float32 master, two moments. Two are kept, a third is written."""
    run, one = Run(compose(["scale=paper"])), 14 * KNOWN["Qwen/Qwen2.5-7B"].parameters
    for kept in range(3):
        check_disk(run, (3.01 - kept) * one, kept)
        with pytest.raises(UserError, match=r"the disk has .* GB free, checkpoints take"):
            check_disk(run, (2.99 - kept) * one, kept)
    check_disk(Run(compose(["scale=paper", "model.path=nobody/nothing"])), 0)


@pytest.mark.parametrize(
    ("words", "gpus", "fix"),
    [
        ("scale=paper engine.offload=false", Gpus(2, 2, 79.1 * GIB), "engine.offload=true"),
        ("scale=paper model=qwen2.5-32b", Gpus(1, 1, 23.5 * GIB, host=60 * GIB), "larger GPUs"),
        ("scale=single_gpu", Gpus(1, 1, 23.5 * GIB, taken=20 * GIB), "CUDA_VISIBLE"),
    ],
)
def test_a_run_that_does_not_fit_by_the_plan_is_refused_with_what_would_help(words: str, gpus: Gpus, fix: str) -> None:
    """On several ranks, and with the embedded sampler on one, it ended by an error of CUDA's in the first update."""
    with pytest.raises(UserError, match=r"does not fit by the plan|one process was started") as caught:
        check_fit(fill(Run(compose(words.split())), gpus)[0], gpus, 8)
    assert fix in caught.value.fix


def test_a_driver_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A build for CUDA, and a device that this process may open, of which torch says that it is not available."""
    write(tmp_path / "version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13\n")
    monkeypatch.setattr(gpu_driver, "_DEVICES", tmp_path)
    monkeypatch.setattr(gpu_driver, "_VERSION", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert pick_device("auto").type == "cpu"  # no device
    (tmp_path / "nvidia0").touch()
    for ask in (lambda: pick_device("auto"), lambda: pick_device("cuda"), SamplerOptions().device):
        with pytest.raises(UserError, match=r"for CUDA 13\.0 cannot use the GPU, driver 470\.57\.02: "):
            ask()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert pick_device("auto").type == "cpu"  # as meant


def test_ranks_that_have_nothing_to_do_and_engines_that_they_cannot_hold() -> None:
    """Mini-batches are dealt by sequences, to any number of ranks that have one."""
    dealt, engine = compose(["train.mini_batch_prompts=16"]), engine_backend("deepspeed")
    engine.check_settings(dealt, 128)
    with pytest.raises(UserError, match="129 ranks cannot share mini-batches of 128 responses"):
        engine.check_settings(dealt, 129)
    config, cut = (compose(["scale=paper", f"sampler.tensor_parallel={size}"]) for size in (4, 8))
    sampler_backend("vllm").check_settings(config, 8)
    for kind, ranks, words, message in (
        ("vllm", 6, config, "6 ranks cannot share engines of 4"),
        ("vllm", 8, cut, "28 heads and 4 key-value heads cannot be cut over 8 GPUs"),
        ("torch", 8, config, "not cut over ranks"),
    ):
        with pytest.raises(UserError, match=message):
            sampler_backend(kind).check_settings(words, ranks)


def test_a_store_that_cannot_be_made_is_not_called_a_full_disk() -> None:
    with pytest.raises(UserError, match="cannot write: a part of the path"):
        train(Run(small(Path("/dev/null/runs"))))


@pytest.mark.parametrize("name", get_args(TrackerName))
def test_a_tracker_that_is_not_installed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=f"{name} is not installed") as refused:
        train(Run(small(tmp_path, f"tracking.to=[{name}]")))
    assert (refused.value.exit_code, f"[{name}]" in refused.value.fix) == (2, True)
    assert not list(tmp_path.iterdir())


@pytest.mark.wandb
def test_wandbs_settings_in_the_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where wandb sends is for the caller to say, and not for a file that lies in the current folder."""
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "wandb" / "settings", "[default]\nbase_url = http://127.0.0.1:9\nentity = somebody\n")
    with pytest.raises(UserError, match="where metrics and your key are sent") as refused:
        check_trackers(small(tmp_path / "runs", "tracking.to=[wandb]"))
    assert refused.value.where == str(file)
    check_trackers(small(tmp_path / "runs", "tracking.to=[wandb]", "tracking.offline=true"))
