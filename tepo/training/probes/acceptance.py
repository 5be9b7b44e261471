"""The probes one after the other, each in a process of its own, and one file of their results, to be sent back.

One probe in this process: python -m tepo.training.probes.acceptance NAME SIZE FILE.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tepo.common.files import write_json
from tepo.training.probes.probe_record import Figure, record, supervise

NAMES = ("attention", "fused", "update", "sampler")
_LIMIT = 60.0  # seconds of one, from where it has imported torch and started CUDA
_START = 600.0  # seconds for that, which take minutes on the disk of a network


def accept(path: Path, size: str = "short") -> Iterator[dict[str, Any]]:
    """The result of each probe, as soon as it is there; `path` then has all (JSON: state, machine, figures of each)."""
    results: dict[str, Any] = {}
    for name in NAMES:
        part = path.with_name(f".{path.name}.{name}")
        words = ["tepo.training.probes.acceptance", name, size, str(part)]
        results[name] = supervise(words, name, part, _LIMIT, _START)
        part.unlink(missing_ok=True)
        write_json(path, results)
        yield results[name]


def measure(name: str, size: str) -> Iterator[Figure]:
    """The figures of one probe, on the GPU unless it is the small size. When it returns, what they need is loaded."""
    import torch

    probe = importlib.import_module(f"tepo.training.probes.{name}_probe")
    device = "cuda" if torch.cuda.is_available() and size != "small" else "cpu"
    one = torch.ones(1, 1, device=device)
    (one @ one).item()
    return probe.figures(device, probe.SIZES[size])


if __name__ == "__main__":
    record(sys.argv[1], lambda: measure(*sys.argv[1:3]), Path(sys.argv[3]))
