"""One part in this process: python -m perf.gpu.part NAME FILE [--small]. The file has what was found, also when it
fails.

`attention`, `fused` and `sampler` are the probes that `tepo doctor` runs; the others have a file here.
"""

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tepo.training.probes import acceptance
from tepo.training.probes.probe_record import Figure, record

MODEL = "TEPO_GPU_MODEL"  # the folder of `smollm`, set by --model
LEFT_MIB = 256.0  # allocated after a part: above cuBLAS's workspaces, below the weights of any model that is trained


class Part(NamedTuple):
    """Its time limit in seconds, what it retires, and the size of a probe of the doctor's."""

    seconds: int
    retires: str
    probe: str = ""


TEN_MINUTES = {  # in the order in which they run
    "attention": Part(30, "the kernel of packed attention; a C compiler for Triton", "short"),
    "fused": Part(30, "the Triton kernels of log-prob and entropy", "short"),
    "vllm": Part(180, "vLLM in process: sleep, wake, reload; memory, the plan and what the measurer is left; the gap"),
    "vllm_head": Part(60, "vLLM's output matrix in bfloat16 and in float32: the gap of both, the alarm's bound"),
    "one_gpu": Part(120, "the planner at 0.5B and 1.5B, 8-bit moments, offload, MFU by size"),
    "resume": Part(60, "the loop: killed and resumed"),
    "sampler": Part(60, "the embedded sampler's CUDA graphs", "full"),
    "deepspeed": Part(60, "DeepSpeed on NCCL, ZeRO 2 and 3"),
}
ON_REQUEST = {
    "two_gpus": Part(300, "NCCL over two ranks, one vLLM engine over both; needs two GPUs"),
    "fused_peers": Part(80, "the fused op at four tile sizes beside torch.compile, TRL and Liger"),
    "update": Part(110, "updates of Qwen2.5-7B's layers, the allocator's segments"),
    "half_billion": Part(90, "Qwen3-0.6B at 16k beside prime-rl's published figures"),
    "smollm": Part(500, "SmolLM2-135M trained for real, where its folder is at hand: what it learns, times, memory"),
}
PARTS = TEN_MINUTES | ON_REQUEST


def measure(name: str, small: bool) -> Iterator[Figure]:
    """The figures of a part, on the GPU where there is one, and last what it leaves allocated."""
    import torch

    device = "cuda" if torch.cuda.is_available() and not small else "cpu"
    if PARTS[name].probe:
        yield from acceptance.measure(name, "small" if small else PARTS[name].probe)
    else:
        yield from importlib.import_module(f"perf.gpu.{name}").measure(device, small)
    yield Figure("still allocated after its close", "MiB", allocated(device) / 2**20, LEFT_MIB, "<=")


def allocated(device: str) -> int:
    """Bytes of torch on the GPU; on a CPU those of the tensors that live."""
    import torch

    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter):
            storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    return sum(storages.values())


def main(name: str, path: str, small: bool) -> None:
    record(name, lambda: measure(name, small), Path(path))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--small" in sys.argv)
