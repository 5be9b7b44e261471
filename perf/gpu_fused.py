"""The fused log-prob and entropy on one GPU, bfloat16, against the matmul ceiling measured beside it, naive and torch.compile.

Needs torch with CUDA and Triton, and this repository on PYTHONPATH; transformers is not imported. TRL's and Liger's paths
are measured too where those packages are importable. `share` counts the operations that must be done without keeping the
logits out of the way: 2NVH forward, 6NVH forward + backward (ours executes 8NVH: the logits are made again).
The varlen attention over a packed layout is checked against plain blocks and timed.

Run: PYTHONPATH=. python perf/gpu_fused.py [--shape N V H] [--json FILE]     (under 8 minutes at the default shape)
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from tepo.policy import tile
from tepo.policy.fused import linear_statistics
from tepo.policy.kernel_attention import sdpa_blocks, varlen, varlen_available
from tepo.policy.layout import Layout
from tepo.policy.packing import pack

SHAPE = (16_384, 152_064, 3_584)
BUDGETS = (128, 256, 512, 1024)  # MiB for the tile of logits
Pair = tuple[torch.Tensor, torch.Tensor | None]


def seconds(call: Callable[[], Any], device: str, turns: int = 5) -> float:
    """Median wall seconds of a call after one to warm up, the device waited for."""
    taken = []
    for _ in range(turns + 1):
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return median(taken[1:])


def ceiling(shape: tuple[int, int, int], device: str) -> float:
    """Best measured rate of one large product in bfloat16, operations per second."""
    tokens, vocabulary, width = shape
    best = 0.0
    for n, v, k in ((tokens, min(vocabulary, 16_384), width), (min(tokens, 8192), min(vocabulary, 8192), min(vocabulary, 8192))):
        left, right = torch.randn(n, k, device=device, dtype=torch.bfloat16), torch.randn(k, v, device=device, dtype=torch.bfloat16)
        best = max(best, 2 * n * v * k / seconds(lambda left=left, right=right: left @ right, device, turns=20))
    return best


def naive(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> Pair:
    """Logits, log-softmax in float32, gather, entropy (detached, as in training)."""
    logp = torch.log_softmax((hidden @ weight.t()).float(), dim=-1)
    with torch.no_grad():
        entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(1, targets[:, None])[:, 0], entropy


def ours(budget: int, triton: bool, gradient: bool = False) -> Callable[..., Pair]:
    """The fused op with a tile of `budget` MiB, its passes by Triton or by torch."""
    chosen = tile._triton

    def run(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> Pair:
        tile._triton = chosen if triton else lambda logits: False  # type: ignore[assignment]
        return linear_statistics(hidden, weight, targets, budget=budget << 20, entropy_gradient=gradient)[:2]

    return run


def variants(device: str) -> dict[str, Callable[..., Pair]]:
    """Everything that is measured, ours first."""
    found: dict[str, Callable[..., Pair]] = {}
    if device == "cuda":
        found |= {f"tepo, Triton, {budget} MiB": ours(budget, True) for budget in BUDGETS}
        found["tepo, Triton, 512 MiB, entropy gradient"] = ours(512, True, gradient=True)
    found["tepo, torch, 512 MiB"] = ours(512, False)
    found["naive"] = naive
    found["torch.compile(naive)"] = torch.compile(naive)
    try:
        from trl.kernels import ChunkedLogProbFunction
        from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

        found["trl"] = lambda h, w, y: ChunkedLogProbFunction.apply(h, w, None, y, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ("entropy",))[:2]
    except ImportError:
        print("trl is not importable: left out")
    try:
        from liger_kernel.chunked_loss.fused_linear_ppo import LigerFusedLinearPPOBase

        found["liger, log-prob alone"] = lambda h, w, y: (LigerFusedLinearPPOBase.chunk_forward(h[None], w, y[None])[0], None)
    except ImportError:
        print("liger-kernel is not importable: left out")
    return found


def inputs(shape: tuple[int, int, int], device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states [N, H], output matrix [V, H] in bfloat16 and targets [N]; logits of standard deviation 2."""
    tokens, vocabulary, width = shape
    torch.manual_seed(0)
    hidden = 2 * torch.randn(tokens, width, device=device, dtype=torch.bfloat16)
    weight = torch.randn(vocabulary, width, device=device, dtype=torch.bfloat16) / width**0.5
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(0, vocabulary, (tokens,), device=device)


def measure_variant(function: Callable[..., Pair], shape: tuple[int, int, int], device: str) -> dict[str, float]:
    """Seconds forward and forward + backward, and the peak above the inputs (gradients included)."""
    hidden, weight, targets = inputs(shape, device)

    def both() -> None:
        hidden.grad = weight.grad = None
        logprobs, entropies = function(hidden, weight, targets)
        loss = logprobs.sum() if entropies is None or not entropies.requires_grad else logprobs.sum() + entropies.sum()
        loss.backward()

    def forward() -> None:
        with torch.no_grad():
            function(hidden, weight, targets)

    row = {"forward_s": seconds(forward, device), "both_s": seconds(both, device)}
    if device == "cuda":
        hidden.grad = weight.grad = None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        both()
        row["peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return row


def accuracy(device: str) -> dict[str, list[float]]:
    """Root mean square errors of log-prob and entropy, and relative errors of the gradients, against float64 on the same bfloat16 inputs."""
    shape = (512, 20_000, 512)

    def all_of(function: Callable[..., Pair], hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        logprobs, entropies = function(hidden, weight, targets)
        assert entropies is not None
        return [logprobs.detach().double(), entropies.detach().double(), *(g.double() for g in torch.autograd.grad(logprobs.sum(), (hidden, weight)))]

    def wide_naive(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> Pair:
        logp = torch.log_softmax(hidden @ weight.t(), dim=-1)
        return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)

    hidden, weight, targets = inputs(shape, device)
    exact = all_of(wide_naive, hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_(), targets)
    cases = {"tepo, torch": ours(4, False), "naive": naive} | ({"tepo, Triton": ours(4, True)} if device == "cuda" else {})
    errors = {}
    for name, function in cases.items():
        found = all_of(function, hidden, weight, targets)
        absolute = [float((a - b).square().mean().sqrt()) for a, b in zip(found[:2], exact[:2], strict=True)]
        errors[name] = absolute + [float((a - b).norm() / b.norm()) for a, b in zip(found[2:], exact[2:], strict=True)]
    return errors


def attention(device: str) -> dict[str, float]:
    """Largest difference of the varlen kernel and padded blocks on a packed layout, and the seconds of each, forward + backward."""
    rng = np.random.default_rng(0)
    groups = [(np.zeros(int(rng.integers(100, 400))), [np.zeros(int(n)) for n in rng.integers(200, 2000, size=8)]) for _ in range(2)]
    packed = pack(groups).to(device)
    layout, dtype = Layout(packed), torch.bfloat16
    tensors = [torch.randn(len(packed.tokens), heads, 128, device=device, dtype=dtype, requires_grad=True) for heads in (28, 4, 4)]
    if not varlen_available(tensors[0]):
        return {}

    def run(function: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        out = function(*tensors, layout, 128**-0.5, None)
        return [out.detach(), *torch.autograd.grad(out.float().square().sum(), tensors)]

    differences = [float((a.float() - b.float()).norm() / b.float().norm()) for a, b in zip(run(varlen), run(sdpa_blocks), strict=True)]
    names = ("output", "query", "key", "value")
    timed = {"varlen_s": seconds(lambda: run(varlen), device), "blocks_s": seconds(lambda: run(sdpa_blocks), device)}
    return dict(zip(names, differences, strict=True)) | timed | {"tokens": float(len(packed.tokens))}


def measure(shape: tuple[int, int, int] = SHAPE, device: str = "cuda") -> dict[str, Any]:
    """Every table of this script. A variant that does not fit or does not run says why instead of a row."""
    tokens, vocabulary, width = shape
    limit, flops = ceiling(shape, device), 2.0 * tokens * vocabulary * width
    rows: dict[str, Any] = {}
    for name, function in variants(device).items():
        try:
            row = measure_variant(function, shape, device)
            rows[name] = row | {"forward_share": flops / row["forward_s"] / limit, "both_share": 3 * flops / row["both_s"] / limit}
        except Exception as error:  # out of memory, a compiler that is not there: the others still count
            rows[name] = {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"}
        print(f"{name:42}", {key: round(value, 4) if isinstance(value, float) else value for key, value in rows[name].items()}, flush=True)
        if device == "cuda":
            torch.cuda.empty_cache()
    machine = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    head = {"name": "fused log-prob and entropy, bfloat16", "machine": machine, "torch": torch.__version__, "shape": shape, "ceiling_tflops": limit / 1e12}
    return head | {"rows": rows, "accuracy": accuracy(device), "attention": attention(device), "targets": {"forward_share": ">= 0.6", "both_share": ">= 0.5"}}


def show(result: dict[str, Any]) -> None:
    """The tables."""
    print(f"\n{result['name']}: N, V, H = {result['shape']}, {result['machine']}, torch {result['torch']}, matmul ceiling {result['ceiling_tflops']:.1f} TFLOP/s")
    print(f"{'':42} {'fwd ms':>9} {'share':>6} {'fwd+bwd ms':>11} {'share':>6} {'peak MiB':>9}")
    for name, row in result["rows"].items():
        if "failed" in row:
            print(f"{name:42} {row['failed']}")
            continue
        peak = f"{row['peak_mib']:9.0f}" if "peak_mib" in row else ""
        print(f"{name:42} {1e3 * row['forward_s']:9.1f} {row['forward_share']:6.2f} {1e3 * row['both_s']:11.1f} {row['both_share']:6.2f} {peak}")
    print("\nerrors against float64: log-prob, entropy (rms), gradients of hidden and weight (relative)")
    for name, values in result["accuracy"].items():
        print(f"{name:42} " + " ".join(f"{value:9.2e}" for value in values))
    print("\nvarlen attention against padded blocks (relative differences; seconds forward + backward)")
    print({key: float(f"{value:.3g}") for key, value in result["attention"].items()} or "not available here")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=3, default=SHAPE)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", help="where the result goes; default: gpu_fused.json in $OUT or perf/results")
    given = parser.parse_args()
    outcome = measure(tuple(given.shape), given.device)
    show(outcome)
    target = Path(given.json or Path(os.environ.get("OUT", Path(__file__).parent / "results")) / "gpu_fused.json")
    target.write_text(json.dumps(outcome, indent=1) + "\n")
    print(f"\nwritten to {target}")
