"""`tepo`, with the memory written down at each call of vLLM: python -m perf.gpu.traced FILE WORD…

A line of FILE for the sampler's open, sleep, sync and close and for the end of training: when, GiB taken of the GPU by
all processes, GiB allocated by torch in this one. What measures the run is a process of its own and is not traced.
"""

import functools
import json
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from perf.gpu.part import allocated
from perf.gpu.taken import Taken
from tepo.sampling.vllm.vllm_sampler import VllmSampler
from tepo.training import loop

_CALLS = {"open": (VllmSampler, "__init__"), "end of training": (loop, "train")}
_CALLS |= {name: (VllmSampler, name) for name in ("sleep", "sync", "close")}


def write_down(call: Callable[..., Any], name: str, path: Path) -> Callable[..., Any]:
    """The call, and a line after it."""

    @functools.wraps(call)
    def traced(*arguments: Any, **options: Any) -> Any:
        result = call(*arguments, **options)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        line = {"at": name, "time": time.time(), "taken": Taken(device).gib(), "allocated": allocated(device) / 2**30}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return result

    return traced


if __name__ == "__main__":
    for name, (owner, method) in _CALLS.items():
        setattr(owner, method, write_down(getattr(owner, method), name, Path(sys.argv[1])))
    sys.argv[1:] = sys.argv[2:]
    runpy.run_module("tepo_cli", run_name="__main__")
