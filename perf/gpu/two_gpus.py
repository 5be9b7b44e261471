"""Two ranks on two GPUs: ZeRO 2 on NCCL, and one vLLM engine over both, with the run and the weights of part `vllm`."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from perf.gpu.runs import finish, need, rows, start
from perf.gpu.vllm import gaps, planned, sections, words
from tepo.training.probes.probe_record import Figure, NotRun

_RANKS = 2


def measure(device: str, small: bool) -> Iterator[Figure]:
    """With an engine a rank, and with one over both."""
    here = torch.cuda.device_count() if device == "cuda" else 0
    if here < _RANKS:
        raise NotRun(f"needs {_RANKS} GPUs, here {'is' if here == 1 else 'are'} {here}")
    need("vllm", "deepspeed")
    with tempfile.TemporaryDirectory() as name:
        given = [*words(Path(name), device, small), "sampler=vllm", "engine=deepspeed"]
        for size in (1, _RANKS):
            store = Path(name) / f"runs{size}"
            launcher = ("torch.distributed.run", f"--nproc-per-node={_RANKS}", "-m", "tepo_cli")
            finish(start([*given, f"sampler.tensor_parallel={size}"], store, *launcher))
            yield Figure(f"an engine over {size}: steps", "steps", len(rows(store)), 2, ">=")
            for figure in (*gaps(store), *sections(store, planned(given))):
                if not figure.name.startswith("taken in update"):  # the plan is for one rank
                    yield Figure(f"an engine over {size}: {figure.name}", figure.unit, figure.ours, figure.limit)
