import importlib.metadata
import signal
import socket
import sys
from pathlib import Path

import pytest
import torch

from tepo.common import gpu_driver
from tepo.common.errors import RunFailed, UserError
from tepo.common.text import install_line
from tepo.config.compose import compose
from tepo.jobs.job import RunJob
from tepo.policy.model.load_policy import load_tokenizer
from tepo.policy.model.shapes import KNOWN
from tepo.sampling.backends import SamplerOptions, sampler_backend
from tepo.training import setup
from tepo.training.distributed import process_group
from tepo.training.engine.backends import engine_backend
from tepo.training.engine.deepspeed_engine import import_deepspeed
from tepo.training.loop import train
from tepo.training.preflight import check_disk, check_fit
from tepo.training.resources.gpu_cards import GIB
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import Gpus
from tepo.training.rollout.prompt_stream import PromptStream
from tepo.training.run import Run
from tepo.training.setup import pick_device
from tests.support.runs import small

NOBODY = ("model.path=nobody/nothing", f"model.revision={40 * '0'}")  # which no cache holds


def test_ranks_that_would_have_nothing_to_do() -> None:
    """Mini-batches are dealt by sequences, to any number of ranks that have one."""
    config, engine = compose(["train.mini_batch_prompts=16"]), engine_backend("deepspeed")
    for ranks in (6, 12, 24, 64, 128):
        engine.check_settings(config, ranks)
    with pytest.raises(UserError, match="129 ranks cannot share mini-batches of 128 responses") as caught:
        engine.check_settings(config, 129)
    assert "start at most 128 ranks" in caught.value.fix
    with pytest.raises(UserError, match="of 8 responses"):
        engine.check_settings(compose(["train.mini_batch_prompts=16", "train.prompts_per_step=1"]), 16)


def test_a_launcher_with_the_embedded_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each rank would train and write the same run by itself."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(UserError, match="engine=torch trains in one process, and 2 were started"):
        train(Run(small(tmp_path)))
    assert not list(tmp_path.iterdir())


def test_what_a_run_comes_to_need_is_looked_for_before_the_weights_are_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Engines; the package that reads the problems, for training and for measuring; servers that answer."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    for words, message in (
        (("sampler=vllm",), "vLLM is not installed"),
        (("sampler=vllm_server",), "no vLLM server is named"),
        (("engine=deepspeed", "engine.optimizer=adamw_8bit"), "adamw alone"),
        (("engine.kernels=[flash4]",), "flash-attn-4 does not work in float32"),
        (("engine.kernels=[flash4]", "model.dtype=bfloat16"), "GPUs of compute capability 9.0 or more"),
    ):
        with pytest.raises(UserError, match=message):
            train(Run(small(tmp_path, *words, *NOBODY)))
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.delenv("TEPO_DATA", raising=False)
    with pytest.raises(UserError, match="`datasets` is not installed") as caught:
        train(Run(small(tmp_path, "data=gsm8k_math", *NOBODY)))
    assert install_line("hub") in caught.value.fix
    config = small(tmp_path, *NOBODY, "data.benchmarks=[add3,math500]")
    RunJob(Run(config)).check()
    with pytest.raises(UserError, match="`datasets` is not installed") as caught:
        RunJob(Run(config), evaluate=True).check()
    assert caught.value.where == "math500"
    with pytest.raises(RunFailed, match="does not answer"):
        train(Run(small(tmp_path, "sampler=vllm_server", "sampler.servers=[http://127.0.0.1:9]", *NOBODY)))
    assert not list(tmp_path.iterdir())


def test_advice_is_a_setting_that_can_be(tmp_path: Path) -> None:
    stream = PromptStream(small(tmp_path), load_tokenizer("package:laptop"))
    longest = max(len(ids) for _, ids in stream.items)
    for positions, advice in (
        (longest + 1, "train.max_new_tokens=1, or a lower"),
        (longest, "a lower"),
        (3, "a lower"),
    ):
        with pytest.raises(UserError) as refused:
            stream.check_model(positions, 100)
        assert refused.value.fix == f"{advice} train.max_prompt_tokens"


def test_a_disk_that_is_too_small_for_the_checkpoints() -> None:
    """14 bytes of a weight in bfloat16: itself, a float32 master, two moments. Two are kept, a third is written."""
    config, one = compose(["scale=paper"]), 14 * KNOWN["Qwen/Qwen2.5-7B"].parameters
    check_disk(Run(config), 3.01 * one)
    check_disk(Run(config), 1.01 * one, kept=2)
    for free, kept in ((2.99, 0), (1.99, 1), (0.99, 2)):
        with pytest.raises(UserError, match=r"the disk has .* GB free, checkpoints take"):
            check_disk(Run(config), free * one, kept)
    check_disk(Run(compose(["scale=paper", "model.path=nobody/nothing"])), 0)


def start(words: list[str], gpus: Gpus, visible: int = 0) -> None:
    """What a run asks before it loads anything."""
    check_fit(fill(Run(compose(words)), gpus)[0], gpus, visible)


def test_a_run_for_eight_gpus_that_was_started_on_one() -> None:
    """7B with its optimiser on one 80 GB card, where it fits on eight; a 0.5B fits on one."""
    card = Gpus(bytes=79.2 * GIB)
    with pytest.raises(UserError, match="one process was started") as caught:
        start(["scale=paper", "engine.offload=false"], card, 8)
    assert "torchrun --nproc-per-node 8 --no-python tepo train" in caught.value.fix
    start(["scale=single_gpu"], card, 8)


@pytest.mark.parametrize(
    ("words", "gpus", "lacks", "fix"),
    [
        (["scale=paper", "engine.offload=false"], Gpus(2, 2, 79.1 * GIB), "the updates need", "engine.offload=true"),
        (
            ["scale=single_gpu", "model=qwen2.5-1.5b", "sampler=torch", "engine.offload=false"],
            Gpus(1, 1, 23.5 * GIB),
            "the updates need",
            "engine.offload=true",
        ),
        (["scale=paper", "model=qwen2.5-32b"], Gpus(1, 1, 23.5 * GIB, host=60 * GIB), "GiB", "larger GPUs"),
        (["scale=single_gpu"], Gpus(1, 1, 23.5 * GIB, taken=20 * GIB), "other processes hold 20.0", "CUDA_VISIBLE"),
    ],
)
def test_a_run_that_does_not_fit_by_the_plan_is_refused_with_what_would_help(
    words: list[str], gpus: Gpus, lacks: str, fix: str
) -> None:
    """On several ranks, and with the embedded sampler on one, it ended by an error of CUDA's in the first update."""
    with pytest.raises(UserError, match="does not fit by the plan") as caught:
        start(words, gpus)
    assert lacks in caught.value.what
    assert fix in caught.value.fix
    assert "sampler.memory_fraction=0.3, say, overrules the plan" in caught.value.fix


def test_it_is_refused_before_a_folder_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(setup, "gpus_here", lambda device: Gpus(bytes=1.2 * GIB))
    with pytest.raises(UserError, match="the run does not fit by the plan"):
        train(Run(small(tmp_path)))
    assert not list(tmp_path.iterdir())
    train(Run(small(tmp_path, "sampler.memory_fraction=0.5", "train.steps=1")))


def test_a_driver_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A build for CUDA, and a device that this process may open, of which torch says that it is not available."""
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13\n")
    monkeypatch.setattr(gpu_driver, "_DEVICES", tmp_path)
    monkeypatch.setattr(gpu_driver, "_VERSION", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert pick_device("auto").type == "cpu"  # no device
    with pytest.raises(UserError, match="no CUDA device"):
        pick_device("cuda")
    (tmp_path / "nvidia0").touch()
    for ask in (lambda: pick_device("auto"), lambda: pick_device("cuda"), SamplerOptions().device):
        with pytest.raises(UserError, match=r"for CUDA 13\.0 cannot use the GPU, driver 470\.57\.02: ") as caught:
            ask()
        assert "update the driver" in caught.value.fix
    assert pick_device("cpu").type == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert pick_device("auto").type == "cpu"  # as meant
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert pick_device("auto").type == "cpu"  # a build for CPUs, or for AMD's


def test_deepspeed_that_is_missing_or_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(UserError, match="DeepSpeed is not installed") as caught:
        import_deepspeed()
    assert install_line("deepspeed") in caught.value.fix
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.18.9")
    with pytest.raises(UserError, match=r"DeepSpeed 0\.18\.9 is too old"):
        import_deepspeed()


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match="port of rank 0 is taken") as caught:
            process_group.start(torch.device("cpu"))
    assert "--master-port" in caught.value.fix


def test_a_broken_connection_is_said_and_other_errors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = signal.getsignal(signal.SIGTERM)
    try:
        with (
            pytest.raises(
                RunFailed, match=r"rank 0 of 2: the connection to another rank broke \(connection closed by peer\)"
            ) as caught,
            process_group.lost_ranks(),
        ):
            raise RuntimeError(
                "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711. "
                "This generally indicates a remote worker hanging"
            )
        assert "goes on from the last checkpoint" in caught.value.fix
        with pytest.raises(RuntimeError, match="shapes"), process_group.lost_ranks():
            raise RuntimeError("shapes do not match")
        monkeypatch.setenv("RANK", "1")
        ended = r"rank 1 of 2: ended from outside \(SIGTERM\)"
        with pytest.raises(RunFailed, match=ended), process_group.lost_ranks():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("model", "size", "ranks", "message"),
    [
        ("qwen3-14b", 4, 6, "6 ranks cannot share engines of 4"),
        ("qwen2.5-7b", 8, 8, "28 heads and 4 key-value heads cannot be cut over 8 GPUs"),
        ("smollm2-360m", 2, 8, "15 heads and 5 key-value heads cannot be cut over 2 GPUs"),
    ],
)
def test_engines_that_the_ranks_cannot_hold(model: str, size: int, ranks: int, message: str) -> None:
    config = compose(["scale=paper", f"model={model}", f"sampler.tensor_parallel={size}", "train.max_new_tokens=512"])
    with pytest.raises(UserError, match=message) as caught:
        sampler_backend("vllm").check_settings(config, ranks)
    assert f"sampler.tensor_parallel={size}" in caught.value.where
    with pytest.raises(UserError, match="not cut over ranks"):
        sampler_backend("torch").check_settings(config, ranks)
    with pytest.raises(UserError, match="servers have their own GPUs"):
        sampler_backend("vllm_server").check_settings(config, ranks)


def test_engines_that_can_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = sampler_backend("vllm")
    for model, sizes in {"qwen3-14b": (1, 2, 4, 8), "qwen2.5-7b": (1, 2, 4), "qwen2.5-1.5b": (1, 2, 4)}.items():
        for size in sizes:
            backend.check_settings(compose(["scale=paper", f"model={model}", f"sampler.tensor_parallel={size}"]), 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match="an engine of 4 ranks would lie on several nodes, which have 2 each"):
        backend.check_available(compose(["sampler=vllm", "sampler.tensor_parallel=4"]))


@pytest.mark.parametrize("place", ["/proc/runs", "/dev/null/runs"])
def test_a_store_that_cannot_be_made_is_not_called_a_full_disk(place: str) -> None:
    with pytest.raises(UserError, match=r"cannot write: (the folder|a part of the path)"):
        train(Run(small(Path(place))))
