"""The fused log-prob and entropy: Triton at several tile sizes beside torch's passes, naive, torch.compile and, where
they are importable, TRL's and Liger's paths; all against the measured matmul ceiling."""

import math
from collections.abc import Iterator

import torch

from tepo.policy.logprobs import tile
from tepo.training.probes import fused_probe as probe
from tepo.training.probes.probe_record import Figure
from tepo.training.probes.timing import ceiling

_CHOSEN = tile._triton
_TILES = (128, 256, 512, 1024)  # MiB of logits


def measure(device: str, small: bool) -> Iterator[Figure]:
    """Speed and peak of every variant, accuracy of ours with either kind of passes; the compiler, the slowest, last."""
    shape = probe.SIZES["small" if small else "full"]
    best = ceiling(shape, device)
    yield Figure("matmul ceiling", "TFLOP/s", best / 1e12)
    for name, function in variants(device).items():
        yield from speed(name, function, shape, best, device)
    yield from probe.accuracy(device, ours(4))
    yield from probe.accuracy(device, ours(4, triton=False), "ours, torch's passes")
    yield from speed("torch.compile(naive)", torch.compile(probe.naive), shape, best, device)


def speed(name: str, function: probe.Function, shape: probe.Shape, best: float, device: str) -> Iterator[Figure]:
    """The figures of one variant, or that it failed."""
    try:
        yield from probe.speed(name, probe.measure(function, shape, device), shape, best)
    except Exception as error:  # out of memory, a compiler that is not there: the others still count
        yield Figure(name, "failed", math.nan, note=f"{type(error).__name__}: {str(error).strip()[:160]}")
    if device == "cuda":
        torch.cuda.empty_cache()


def variants(device: str) -> dict[str, probe.Function]:
    """Functions measured besides the compiler, ours first."""
    found: dict[str, probe.Function] = {}
    if device == "cuda":
        found |= {f"ours, Triton, {size} MiB": ours(size) for size in _TILES}
        found["ours, Triton, 512 MiB, entropy gradient"] = ours(512, entropy_gradient=True)
    found["ours, torch's passes, 512 MiB"] = ours(512, triton=False)
    found["naive"] = probe.naive
    return found | peers()


def ours(size: int, *, triton: bool = True, entropy_gradient: bool = False) -> probe.Function:
    """The fused op with a tile of `size` MiB, its passes by Triton or by torch: in the backward too, so until the next
    call."""

    def run(*tensors: torch.Tensor) -> probe.Pair:
        tile._triton = _CHOSEN if triton else lambda logits: False
        return probe.fused(size << 20, entropy_gradient)(*tensors)

    return run


def peers() -> dict[str, probe.Function]:
    """TRL's chunked op and Liger's log-probs, where they can be imported."""
    found: dict[str, probe.Function] = {}
    try:
        from trl.kernels import ChunkedLogProbFunction
        from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE as chunk

        rest = (1.0, chunk, None, 1.0, ("entropy",))
        found["trl"] = lambda h, w, y: ChunkedLogProbFunction.apply(h, w, None, y, *rest)[:2]
    except ImportError:
        pass
    try:
        from liger_kernel.chunked_loss.fused_linear_ppo import LigerFusedLinearPPOBase as Liger

        found["liger, log-prob alone"] = lambda h, w, y: (Liger.chunk_forward(h[None], w, y[None])[0], None)
    except ImportError:
        pass
    return found
