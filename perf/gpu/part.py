"""One part in this process: python -m perf.gpu.part NAME FILE [--small]. The file has what was found, also when it
fails."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from perf.gpu.record import Figure, record

LEFT_MIB = 256.0  # allocated after a part: above cuBLAS's workspaces, below the weights of any model that is trained


class Part(NamedTuple):
    """A time limit in seconds, and the file of this folder with the part's function."""

    seconds: int
    file: str


TEN_MINUTES = {  # in the order in which they run
    "attention": Part(30, "kernels"),
    "fused": Part(30, "kernels"),
    "vllm": Part(180, "vllm"),
    "vllm_head": Part(60, "vllm"),
    "one_gpu": Part(120, "updates"),
    "resume": Part(60, "runs"),
    "sampler": Part(60, "sampler"),
    "deepspeed": Part(60, "deepspeed"),
}
ON_REQUEST = {
    "two_gpus": Part(300, "vllm"),
    "fused_peers": Part(80, "kernels"),
    "update": Part(110, "updates"),
    "half_billion": Part(90, "updates"),
    "smollm": Part(500, "smollm"),
}
PARTS = TEN_MINUTES | ON_REQUEST


def measure(name: str, small: bool) -> Iterator[Figure]:
    """The figures of a part, on the GPU where there is one, and last what it leaves allocated."""
    import torch

    from perf.gpu.timing import allocated

    device = "cuda" if torch.cuda.is_available() and not small else "cpu"
    yield from getattr(importlib.import_module(f"perf.gpu.{PARTS[name].file}"), name)(device, small)
    yield Figure("still allocated after its close", "MiB", allocated(device) / 2**20, LEFT_MIB, "<=")


if __name__ == "__main__":
    record(sys.argv[1], lambda: measure(sys.argv[1], "--small" in sys.argv), Path(sys.argv[2]))
