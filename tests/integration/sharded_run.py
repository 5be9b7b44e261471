"""A program for test_sharded.py, as a rank: a model of 60 million weights is loaded under ZeRO-3, and its weights are
read as the sampler reads them.

    python -m tests.integration.sharded_run MODEL OUT

Writes OUT/RANK.json: bytes of the model, growth of the process's own memory (not of files that are mapped into it)
while it is loaded, while its weights are read, while they are written, and while a checkpoint of weights and optimiser
is copied and written after an update, weights of this rank, whether those that were read are those of the file, bit
for bit, and where the optimiser's state lies that a checkpoint is made of.
"""

import ctypes
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from safetensors.torch import load_file

from tepo.config.compose import compose
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model import load_policy as loader
from tepo.policy.model.load_policy import load_policy
from tepo.policy.packing.packing import pack
from tepo.store.checkpoint_files import TensorFile
from tepo.store.run_folder import RunFolder
from tepo.training.checkpoints import model_files, saver
from tepo.training.distributed import process_group
from tepo.training.engine import optimizer_state
from tepo.training.engine.backends import engine_backend
from tests.support.runs import write_files


def own_bytes() -> int:
    """Memory that no file stands behind."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


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


def give_back() -> None:
    """Have freed memory leave the process at once, so that its growth is what is held."""
    loader.keep_freed_memory = lambda: True
    assert ctypes.CDLL(None).mallopt(-3, 2**17)  # M_MMAP_THRESHOLD


def main(model: str, out: Path) -> None:
    torch.set_num_threads(1)
    config = compose([f"model.path={model}", "engine=deepspeed", "engine.zero_stage=3"])
    backend, device = engine_backend("deepspeed"), torch.device("cpu")

    def load() -> Any:
        with backend.loading(config, model, device):
            return load_policy(model)

    load_policy("package:laptop")  # what the libraries take at the first call does not count
    backend.check_available(config)
    give_back()
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
    accelerator = get_accelerator()
    accelerator.current_device_name = lambda: "meta"  # as where masters and moments do not lie on the device
    places = sorted({str(piece.value.device) for piece in engine.state()})
    found = {"loading": loading, "reading": reading, "writing": writing, "saving": saving, "places": places}
    found |= {"held": held * 4, "same": same, "names": sorted(read_weights)}
    found["missing"] = sorted(set(saved) - set(read_weights))
    sizes = [value.nbytes for value in saved.values()]
    found |= {"bytes": sum(sizes), "largest": max(sizes)}
    (out / f"{process_group.rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
