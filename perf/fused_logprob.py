"""The fused log-prob and entropy against a naive one, torch.compile, the bare products, and the paths of TRL and Liger.

Forward + backward, float32, one thread, gradients for the hidden states and the output matrix. Every measurement is a
process of its own; variants take turns, and ratios are medians over turns. Memory is the peak above the inputs (it
includes the two gradients). `bare products` is what cannot be avoided without keeping the logits: logits twice, and the
two gradients. Two jobs: `with entropy gradient` asks for gradients of log-prob and entropy, the plain one for that of
the log-prob, with the entropy's value beside it (what training does unless the objective holds an entropy term). TRL's
op is run as its trainer runs it (tiles of 4,096 tokens x 32,768 columns). Liger gives no entropy at all, so its rows do
less: its log-prob op over all tokens at once, and its GRPO loss, which takes a row of 512 tokens after the other.

Run: OMP_NUM_THREADS=1 python -m perf.fused_logprob [--short] [--peers PYTHON] [--only VARIANT …]
PYTHON is the interpreter of an environment that holds torch, trl and liger-kernel (perf/peers.txt).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tepo.common import interpreter

FULL, SHORT = (4096, 151_936, 896), (1024, 50_000, 896)  # tokens, vocabulary, hidden size
OURS = ("tepo", "tepo with entropy gradient")
LIMITS = ("bare products", "naive", "naive with entropy gradient")
PEERS = ("trl", "trl with entropy gradient", "liger, log-prob alone", "liger, GRPO loss")


def _naive(hidden, weight, targets):
    logp = torch.log_softmax(hidden @ weight.t(), dim=-1)
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def _naive_detached(hidden, weight, targets):
    logp = torch.log_softmax(hidden @ weight.t(), dim=-1)
    with torch.no_grad():
        entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(1, targets[:, None])[:, 0], entropy


def _function(variant: str) -> Callable[..., Any]:
    """The forward of a variant: (hidden, weight, targets) -> (log-prob, entropy)."""
    gradient = variant.endswith("with entropy gradient")
    if variant.startswith("tepo"):
        from tepo.policy.logprobs.softmax_at_temperature import StatisticsOptions, softmax_statistics

        return lambda h, w, y: softmax_statistics(h, w, y, StatisticsOptions(entropy_gradient=gradient))[:2]
    if variant.startswith("trl"):
        from trl.kernels import ChunkedLogProbFunction
        from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

        return lambda h, w, y: ChunkedLogProbFunction.apply(
            h, w, None, y, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ("entropy",)
        )[:2]
    if variant.startswith("liger"):
        from liger_kernel.chunked_loss.fused_linear_ppo import LigerFusedLinearPPOBase

        return lambda h, w, y: (LigerFusedLinearPPOBase.chunk_forward(h[None], w, y[None])[0], None)
    if variant == "torch.compile":
        return torch.compile(_naive_detached)
    return _naive if gradient else _naive_detached


def _liger_loss(hidden, weight, targets):
    """The GRPO loss as a trainer calls it: rows of up to 512 tokens, a row at a time, no reference model;
    its arithmetic on log-probs is not worth compiling."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    rows = max(1, len(targets) // 512)
    loss = LigerFusedLinearGRPOLoss(beta=0.0, compiled=False, use_ref_model=False)
    shaped = hidden.view(rows, -1, hidden.shape[1]), weight, targets.view(rows, -1)
    return loss(*shaped, torch.ones(rows, len(targets) // rows), torch.ones(rows))[0]


def _once(variant: str, hidden, weight, targets) -> None:
    """One forward and backward."""
    if variant == "bare products":
        logits = hidden @ weight.t()
        torch.mm(hidden, weight.t(), out=logits)
        hidden.grad, weight.grad = logits @ weight, logits.t() @ hidden
        return
    if variant == "liger, GRPO loss":
        _liger_loss(hidden.requires_grad_(), weight.requires_grad_(), targets).backward()
        return
    logprobs, entropies = _function(variant)(hidden.requires_grad_(), weight.requires_grad_(), targets)
    loss = logprobs.sum()
    if entropies is not None and entropies.requires_grad and variant.endswith("with entropy gradient"):
        loss = loss + 0.5 * entropies.sum()
    loss.backward()


def worker(variant: str, tokens: int, vocabulary: int, width: int) -> dict[str, float]:
    """Measure one variant in this process."""
    torch.set_num_threads(1)

    def inputs(n: int, v: int):
        torch.manual_seed(0)
        return 2 * torch.randn(n, width), torch.randn(v, width) / width**0.5, torch.randint(0, v, (n,))

    _once(variant, *inputs(64, 500))  # imports and library start-up
    if variant == "torch.compile":
        torch.compiler.reset()
        _once(variant, *inputs(tokens, vocabulary))  # compiles for these shapes
    data = inputs(tokens, vocabulary)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    before, start = _memory("VmRSS"), time.process_time()
    _once(variant, *data)
    return {"cpu_s": time.process_time() - start, "peak_mib": (_memory("VmHWM") - before) / 1024}


def _memory(name: str) -> int:
    """KiB of this process, from Linux."""
    return next(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)
    )


def measure(
    short: bool = False, turns: int = 1, peers: str | None = None, only: list[str] | None = None
) -> dict[str, Any]:
    """Seconds and peak of every variant, ratios of ours (log-prob and entropy, plain job)
    to naive and to the bare products."""
    shape = SHORT if short else FULL
    variants = [*LIMITS, *OURS, *([] if short else ["torch.compile"]), *(PEERS if peers else ())]
    runs: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants if not only or variant in only}
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}  # of the peers' interpreter, too
    environment = interpreter.environment() | own
    for _ in range(turns):
        for variant, done in runs.items():
            python = peers if peers and variant in PEERS else sys.executable
            command = [python, __file__, "--worker", variant, "--shape", *map(str, shape)]
            out = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                cwd=Path(__file__).parent.parent,
                env=environment,
            ).stdout
            done.append(json.loads(out.splitlines()[-1]))
            print(variant, done[-1], file=sys.stderr, flush=True)
    rows = {variant: {key: median(run[key] for run in done) for key in done[0]} for variant, done in runs.items()}
    result: dict[str, Any] = {
        "name": "fused log-prob and entropy, forward + backward, float32",
        "tokens": shape[0],
        "vocabulary": shape[1],
        "hidden": shape[2],
        "rows": rows,
    }
    if {"tepo", "naive", "bare products"} <= rows.keys():
        paired = list(zip(runs["tepo"], runs["naive"], runs["bare products"], strict=True))
        result["time_to_naive"] = median(ours["cpu_s"] / naive["cpu_s"] for ours, naive, _ in paired)
        result["time_to_bare"] = median(ours["cpu_s"] / bare["cpu_s"] for ours, _, bare in paired)
        result["peak_to_naive"] = median(ours["peak_mib"] / naive["peak_mib"] for ours, naive, _ in paired)
        result["targets"] = {"time_to_naive": "<= 1.05", "time_to_bare": "<= 1.2", "peak_to_naive": "<= 0.1"}
    return result


def show(result: dict[str, Any]) -> None:
    """One table."""
    print(
        f"{result['name']}: N = {result['tokens']:,}, V = {result['vocabulary']:,}, H = {result['hidden']:,}, "
        "one thread"
    )
    rows = result["rows"]
    print(f"{'':32} {'CPU s':>8} {'to naive':>9} {'to bare':>9} {'peak MiB':>9} {'to naive':>9}")
    for variant, row in rows.items():
        naive = rows.get("naive with entropy gradient" if variant.endswith("with entropy gradient") else "naive")
        times = [
            f"{row['cpu_s'] / other['cpu_s']:9.2f}" if other else " " * 9
            for other in (naive, rows.get("bare products"))
        ]
        peak = f"{row['peak_mib'] / naive['peak_mib']:9.3f}" if naive else ""
        print(f"{variant:32} {row['cpu_s']:8.2f} {times[0]} {times[1]} {row['peak_mib']:9.0f} {peak}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a smaller shape, without torch.compile")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--peers", help="interpreter of the peers' environment")
    parser.add_argument("--only", nargs="*", help="some variants alone")
    parser.add_argument("--json", help="also write the result here")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--shape", type=int, nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(worker(given.worker, *given.shape)))
    else:
        outcome = measure(given.short, given.turns, given.peers, given.only)
        show(outcome)
        if given.json:
            Path(given.json).write_text(json.dumps(outcome, indent=1) + "\n")
