"""A model of 60 million weights is loaded under ZeRO-3, and its weights are read as the sampler reads them."""

import ctypes
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tepo.config.compose import compose
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model import load_policy as loader
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.shapes import Shape
from tepo.policy.packing.packing import pack
from tepo.store.checkpoint_files import TensorFile
from tepo.store.run_folder import RunFolder
from tepo.training.checkpoints import model_files, saver
from tepo.training.distributed import process_group
from tepo.training.engine import optimizer_state
from tepo.training.engine.backends import engine_backend
from tepo.training.resources.memory import Gpus
from tepo.training.resources.node import PROCESS, node_memory
from tepo.training.run import Run
from tests.support.commands import ranks
from tests.support.runs import write_files


def own_bytes() -> int:
    """Memory that no file stands behind."""
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024


def growth(work: Callable[[], Any]) -> tuple[Any, int]:
    """What `work` returns, and by how much the process grew at its peak."""
    before, peak, ended = own_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.is_set():
            peak = max(peak, own_bytes())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = work()
    finally:
        ended.set()
        watcher.join()
    return result, peak - before


def measure(model: str, out: Path) -> None:
    """As a rank, write OUT/RANK.json: bytes of the model; growth of the process's own memory (not of files that are
    mapped into it) while it is loaded, its weights are read and written, and a checkpoint of weights and optimiser is
    copied and written after an update; weights of this rank; whether those that were read are the file's, bit for bit;
    and where the optimiser's state lies that a checkpoint is made of."""
    torch.set_num_threads(1)
    config = compose([f"model.path={model}", "engine=deepspeed", "engine.zero_stage=3"])
    backend, device = engine_backend("deepspeed"), torch.device("cpu")

    def load() -> Any:
        with backend.loading(config, model, device):
            return load_policy(model)

    load_policy("package:laptop")  # what the libraries take at the first call does not count
    backend.check_available(config)
    # freed memory leaves the process at once, so that its growth is what is held
    loader.keep_freed_memory = lambda: True
    assert ctypes.CDLL(None).mallopt(-3, 2**17)  # M_MMAP_THRESHOLD
    (out / "checkpoint").mkdir(exist_ok=True)
    policy, loading = growth(load)
    held = sum(p.numel() if p.ds_status.name == "AVAILABLE" else p.ds_tensor.numel() for p in policy.model.parameters())
    engine = backend.open(config, policy)

    def read() -> dict[str, float]:
        return {name: float(value.sum()) for name, value in engine.weights().items()}

    read()
    read_weights, reading = growth(read)
    saved = load_file(Path(model) / "model.safetensors")
    same = all(torch.equal(value, saved[name]) for name, value in engine.weights().items() if name in saved)
    model_files._WORTH_SHARING = 1 << 20

    checkpoint, rank, world_size = out / "checkpoint", process_group.rank(), process_group.world_size()

    def write() -> None:
        write_files(checkpoint, model_files.model_files(policy, engine.weights(), checkpoint, rank, world_size))

    if rank == 0:
        model_files.write_beside_weights(policy, checkpoint)
    _, writing = growth(write)
    saver._room = lambda ranks, on_cpu: math.inf  # copies are made, however much else runs here

    def save() -> None:
        def files(scratch: Path) -> Iterator[TensorFile]:
            yield from model_files.model_files(policy, engine.weights(), scratch, rank, world_size)
            yield from optimizer_state.files(engine.state(), rank)

        with saver.Saver(RunFolder(out / "run"), engine.comm) as writer:
            writer.save(1, {}, files)

    engine.backward(token_statistics(engine.model, pack([([1, 2, 3], [[4, 5], [6, 7]])])).logprobs.sum())
    engine.step(1e-6)
    engine.weights()
    _, saving = growth(save)
    from deepspeed.accelerator import get_accelerator

    get_accelerator().current_device_name = lambda: "meta"  # as where masters and moments do not lie on the device
    places = sorted({str(piece.value.device) for piece in engine.state()})
    sizes = [value.nbytes for value in saved.values()]
    found = {"loading": loading, "reading": reading, "writing": writing, "saving": saving, "places": places}
    found |= {"held": held * 4, "same": same, "names": sorted(read_weights), "files": sorted(saved)}
    found |= {"bytes": sum(sizes), "largest": max(sizes)}
    (out / f"{process_group.rank()}.json").write_text(json.dumps(found))


pytestmark = [pytest.mark.disaster, pytest.mark.deepspeed]

NAMES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SIZES = dict(zip((*NAMES, "vocab_size"), (1024, 2816, 4, 8, 8, 4096), strict=True))


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("sharded")
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-1, 1)
    model.save_pretrained(folder / "model")
    load_policy("package:laptop").tokenizer.save_pretrained(folder / "model")
    for rank in ranks(measure, str(folder / "model"), folder):
        rank.end()
    return [json.loads((folder / f"{rank}.json").read_text()) | {"folder": folder} for rank in (0, 1)]


def test_no_rank_holds_the_model_while_it_is_loaded(said: list[dict]) -> None:
    for one in said:
        assert one["bytes"] > 200e6
        assert one["held"] < 0.55 * one["bytes"]
        assert one["loading"] < min(0.5 * one["bytes"] + 4 * one["largest"], 0.8 * one["bytes"])


def test_the_weights_are_read_a_tensor_at_a_time_and_arrive(said: list[dict]) -> None:
    for one in said:
        assert one["same"]
        assert {"lm_head.weight", *one["files"]} <= set(one["names"])
        assert one["reading"] < min(3 * one["largest"], 0.25 * one["bytes"])


def test_each_rank_writes_its_own_files_of_a_checkpoint_without_the_others(said: list[dict]) -> None:
    folder = said[0]["folder"]
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
