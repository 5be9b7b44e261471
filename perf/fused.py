"""The fused log-prob and entropy beside the naive form, torch.compile, the bare products, and the paths of TRL and
Liger: forward + backward, float32, one thread, gradients for the hidden states and the output matrix.

Every measurement is a process of its own, what is compared takes turns. Memory is the peak above the inputs (it
includes the two gradients). `bare products` is what cannot be avoided without keeping the logits: logits twice, and the
two gradients. `with entropy gradient` asks for gradients of log-prob and entropy, the others for that of the log-prob,
with the entropy's value beside it (what training does unless the objective holds an entropy term). TRL's op is run as
its trainer runs it (tiles of 4,096 tokens x 32,768 columns). Liger gives no entropy at all, so its row does less.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from perf.ratios import BenchmarkRow, beside, in_turn

ROOT = Path(__file__).parents[1]
FULL, SHORT = (4096, 151_936, 896), (1024, 50_000, 896)  # tokens, vocabulary, hidden size
JOBS = {  # what ours is compared with, and the targets of time and memory at full size
    "tepo": {
        "bare products": (1.2, None), "naive": (1.05, 0.1), "trl": (1.0, 1.0), "liger, log-prob alone": (1.0, 1.0),
        "torch.compile": (None, None),
    },
    "tepo with entropy gradient": {
        "naive with entropy gradient": (1.05, 0.1), "trl with entropy gradient": (1.0, 1.0)
    },
}  # fmt: skip


def peers_python() -> str | None:
    """The interpreter of the peers' environment (perf/peers.txt), None where there is none."""
    path = Path(os.environ.get("TEPO_PEERS_PYTHON") or ROOT / "perf/.peers/bin/python")
    return str(path.absolute()) if path.exists() else None


def measure(turns: int, short: bool) -> list[BenchmarkRow]:
    """Time and memory of ours over those of each other variant that does the same job."""
    peers, rows = peers_python(), []
    for ours, others in {"tepo": {"naive": (None, None)}}.items() if short else JOBS.items():
        names = [ours, *(name for name in others if peers or not name.startswith(("trl", "liger")))]
        sides = {name: lambda turn, name=name: measured(name, SHORT if short else FULL, peers) for name in names}
        found = in_turn(sides, max(1, turns // 3) if short else 1, warm=0)
        for name in names[1:]:
            for title, unit, key, target in zip(*_KINDS, others[name], strict=True):
                one, other = ([row[key] for row in found[side]] for side in (ours, name))
                rows.append(beside(f"fused op / {name}, {title}", unit, one, other, target, guarded=short))
    return rows


_KINDS = ("time", "peak memory"), ("CPU s", "MiB"), ("cpu_s", "peak_mib")


def measured(variant: str, shape: tuple[int, int, int], peers: str | None) -> dict[str, float]:
    """One variant in a process of its own."""
    from tepo.common import interpreter  # not there in the peers' environment

    own, *words = interpreter.command("-m", "perf.fused", variant, *map(str, shape))
    python = peers if peers and variant.startswith(("trl", "liger")) else own
    environment = interpreter.environment() | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, *words], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def call_of(variant: str) -> Callable[..., Any]:
    """One forward and backward of a variant: (hidden, weight, targets)."""
    gradient = variant.endswith("with entropy gradient")
    if variant == "bare products":

        def bare(hidden, weight, targets) -> None:
            logits = hidden @ weight.t()
            torch.mm(hidden, weight.t(), out=logits)
            hidden.grad, weight.grad = logits @ weight, logits.t() @ hidden

        return bare
    if variant.startswith("tepo"):
        from tepo.policy.logprobs.softmax_at_temperature import StatisticsOptions, softmax_statistics

        def forward(h, w, y):
            return softmax_statistics(h, w, y, StatisticsOptions(entropy_gradient=gradient))[:2]

    elif variant.startswith("trl"):
        from trl.kernels import ChunkedLogProbFunction
        from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE as chunk

        def forward(h, w, y):
            return ChunkedLogProbFunction.apply(h, w, None, y, 1.0, chunk, None, 1.0, ("entropy",))[:2]

    elif variant.startswith("liger"):
        from liger_kernel.chunked_loss.fused_linear_ppo import LigerFusedLinearPPOBase as Liger

        def forward(h, w, y):
            return Liger.chunk_forward(h[None], w, y[None])[0], None

    else:
        from tepo.policy.kernel_check import naive

        def with_gradient(h, w, y):
            logp = torch.log_softmax(h @ w.t(), dim=-1)
            return logp.gather(1, y[:, None])[:, 0], -(logp.exp() * logp).sum(-1)

        forward = with_gradient if gradient else torch.compile(naive) if variant == "torch.compile" else naive

    def run(hidden, weight, targets) -> None:
        logprobs, entropies = forward(hidden.requires_grad_(), weight.requires_grad_(), targets)
        (logprobs.sum() + 0.5 * entropies.sum() if gradient else logprobs.sum()).backward()

    return run


def worker(variant: str, tokens: int, vocabulary: int, width: int) -> dict[str, float]:
    """Measure one variant in this process."""
    torch.set_num_threads(1)
    run = call_of(variant)

    def inputs(n: int, v: int) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        return 2 * torch.randn(n, width), torch.randn(v, width) / width**0.5, torch.randint(0, v, (n,))

    def memory(name: str) -> int:
        """KiB of this process, from Linux."""
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))

    run(*inputs(64, 500))  # imports and library start-up
    if variant == "torch.compile":
        torch.compiler.reset()
        run(*inputs(tokens, vocabulary))  # compiles for these shapes
    data = inputs(tokens, vocabulary)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    before, start = memory("VmRSS"), time.process_time()
    run(*data)
    return {"cpu_s": time.process_time() - start, "peak_mib": (memory("VmHWM") - before) / 1024}


if __name__ == "__main__":
    print(json.dumps(worker(sys.argv[1], *map(int, sys.argv[2:]))))
