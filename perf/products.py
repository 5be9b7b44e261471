"""The matrix products that the laptop policy cannot avoid, measured beside what is compared with them: a limit that
a slower or faster CPU moves as it moves the cost."""

import time
from collections.abc import Callable

import torch

# [inputs, outputs] of the linear layers: queries with keys and values, output, gate with up, down; the head
SHAPES = [(96, 96 + 2 * 32), (96, 96), (96, 512), (256, 96)] * 2 + [(96, 42)]


def products(tokens: int, backward: bool = True) -> Callable[[], float]:
    """A call that runs the linear layers of one forward (and of its backward: three products for each layer in all)
    over `tokens` tokens and returns its CPU seconds."""
    cases = [
        (torch.randn(tokens, rows), torch.randn(rows, columns), torch.randn(tokens, columns))
        for rows, columns in SHAPES
    ]

    def run() -> float:
        started = time.process_time()
        for left, weight, gradient in cases:
            _ = (left @ weight, gradient @ weight.T, left.T @ gradient) if backward else left @ weight
        return time.process_time() - started

    return run
