"""One part in this process: python -m perf.gpu.part NAME FILE [--small]. The file has what was found, also when it
fails.

`attention` and `sampler` are the probes that `tepo doctor` runs, at full size; the others have a file here.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tepo.training.probes import acceptance
from tepo.training.probes.record import Figure, record

LIMITS = {
    "attention": 40,
    "fused": 80,
    "update": 110,
    "deepspeed": 110,
    "sampler": 80,
    "train": 70,
    "half_billion": 90,
    "one_gpu": 150,
}  # seconds of each part: 580 in all without the last, which runs when it is asked for
TEN_MINUTES = tuple(part for part in LIMITS if part != "one_gpu")
PROBES = ("attention", "sampler")


def measure(name: str, small: bool) -> Iterator[Figure]:
    """The figures of a part, on the GPU where there is one."""
    import torch

    if name in PROBES:
        return acceptance.measure(name, "small" if small else "full")
    device = "cuda" if torch.cuda.is_available() and not small else "cpu"
    return importlib.import_module(f"perf.gpu.{name}").measure(device, small)


def main(name: str, path: str, small: bool) -> None:
    record(name, lambda: measure(name, small), Path(path))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--small" in sys.argv)
