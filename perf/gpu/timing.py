"""Seconds, what a machine can do at best, and what torch holds."""

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch


def wait(device: str) -> None:
    """Wait for what was launched."""
    if device == "cuda":
        torch.cuda.synchronize()


def once(call: Callable[[], Any], device: str) -> float:
    """Wall seconds of a call, the device waited for."""
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - start


def seconds(call: Callable[[], Any], device: str, turns: int = 5) -> float:
    """Median wall seconds of a call after one to warm up."""
    return median([once(call, device) for _ in range(turns + 1)][1:])


def ceiling(shape: tuple[int, int, int], device: str) -> float:
    """Best measured rate of one large product in bfloat16 of at most these sizes, operations a second."""
    tokens, vocabulary, width = shape
    side, best = min(vocabulary, 8192), 0.0
    for n, v, k in ((tokens, min(vocabulary, 16_384), width), (min(tokens, 8192), side, side)):
        left, right = (torch.randn(*sizes, device=device).bfloat16() for sizes in ((n, k), (k, v)))
        best = max(best, 2 * n * v * k / seconds(lambda left=left, right=right: left @ right, device, turns=20))
    return best


def bandwidth(device: str) -> float:
    """Bytes read and written a second by one large copy."""
    source = torch.empty((1 << 30) if device == "cuda" else (1 << 24), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device, turns=10)


def allocated(device: str) -> int:
    """Bytes of torch on the GPU; on a CPU those of the tensors that live."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
