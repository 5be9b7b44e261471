"""Seconds, and what a machine can do at best: its rate of matrix products and of copies."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch


def wait(device: str) -> None:
    """Wait for what was launched."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(call: Callable[[], Any], device: str, turns: int = 5) -> float:
    """Median wall seconds of a call after one to warm up, the device waited for."""
    taken = []
    for _ in range(turns + 1):
        wait(device)
        start = time.perf_counter()
        call()
        wait(device)
        taken.append(time.perf_counter() - start)
    return median(taken[1:])


def ceiling(shape: tuple[int, int, int], device: str) -> float:
    """Best measured rate of one large product in bfloat16 of at most these sizes, operations a second."""
    tokens, vocabulary, width = shape
    side = min(vocabulary, 8192)
    best = 0.0
    for n, v, k in ((tokens, min(vocabulary, 16_384), width), (min(tokens, 8192), side, side)):
        left, right = (torch.randn(*sizes, device=device).bfloat16() for sizes in ((n, k), (k, v)))
        taken = seconds(lambda left=left, right=right: left @ right, device, turns=20)  # type: ignore[misc]
        best = max(best, 2 * n * v * k / taken)
    return best


def bandwidth(device: str) -> float:
    """Bytes read and written a second by one large copy."""
    source = torch.empty((1 << 30) if device == "cuda" else (1 << 24), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device, turns=10)
