"""Parts attention, fused, flash4 and layers: kernels against torch (errors) and the measured matmul ceiling (speed).

A rate counts the products that must be done. Of the fused op these are 2NVH forward and 6NVH forward + backward; ours
executes 8NVH, because the logits are made again.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from perf.gpu.models import GROUP, Case
from perf.gpu.record import Figure, NotRun, named
from perf.gpu.timing import ceiling, seconds, wait
from perf.gpu.updates import SMALL, measured
from tepo.policy import kernel_check
from tepo.policy.kernel_check import LogProb, Segments
from tepo.policy.model import kernel_attention
from tepo.policy.model.kernel_attention import attend, flash4_hindrance, varlen_available
from tepo.policy.packing.block_layout import Attention, SegmentLayout

_SMALL = (
    Segments("small", ((6, (9, 20)), (3, (5,))), (4, 2), 16),
    Segments("small, window", ((6, (20,)),), (4, 2), 16, 7),
)


def attention(device: str, small: bool, kernel: Callable[..., Tensor] = attend) -> Iterator[Figure]:
    """Errors and speed of packed attention, whether or not responses share a prompt and whether there is a window."""
    best = ceiling((8192, 8192, 8192) if device == "cuda" else (256, 256, 256), device)
    for case in _SMALL if small else kernel_check.SEGMENTS:
        packed = case.packed(device)
        inputs, weight = case.tensors(len(packed.tokens), device)
        path = "varlen" if varlen_available(inputs[0]) else "blocks"
        path = path if kernel is attend else kernel.__name__
        for name, error, bound in kernel_check.attention_errors(case, device, kernel):
            yield Figure(name, "relative", error, bound, "<=", path)
        ours = partial(kernel, how=Attention(SegmentLayout(packed), case.width**-0.5, case.window))
        taken = seconds(partial(kernel_check.with_gradients, ours, inputs, weight), device)
        # queries times the keys that each sees
        before = np.concatenate([np.zeros_like(packed.prompt_spans), packed.prompt_spans[packed.groups]])
        spans = np.concatenate([packed.prompt_spans, packed.spans])
        seen = [np.arange(p + 1, p + n + 1) for p, n in zip(before, spans, strict=True)]
        pairs = float(sum(np.minimum(keys, case.window or keys.max(initial=0)).sum() for keys in seen))
        rate = 3.5 * 4 * case.heads[0] * case.width * pairs / taken  # the backward has 2.5 times the forward's products
        note = f"{1e3 * taken:.2f} ms"
        yield Figure(f"{case.name}: forward + backward", "TFLOP/s", rate / 1e12, best / 1e12, note=note)


def flash4(device: str, small: bool) -> Iterator[Figure]:
    """The same by flash-attn-4, for `engine.kernels=[flash4]`."""
    hindrance = flash4_hindrance(torch.cuda.get_device_capability() if device == "cuda" else None)
    if hindrance:
        raise (ImportError if "installed" in hindrance[0] else NotRun)(hindrance[0])
    yield from attention(device, small, kernel_attention.flash4)


def layers(device: str, small: bool) -> Iterator[Figure]:
    """What `engine.kernels=[layers]` compiles: its errors, and the updates of four layers of a 7B with and without."""
    for name, error, bound in kernel_check.layer_errors(device):
        yield Figure(name, "relative", error, bound, "<=")
    case = SMALL if small else Case("qwen2.5-7b, 4 layers", 4096, 2 * GROUP, 16_384, True)
    for kernels in ([], ["layers"]):
        yield from named("compiled" if kernels else "as they are", measured(replace(case, kernels=kernels), device, ""))


def fused(device: str, small: bool) -> Iterator[Figure]:
    """Speed of ours, with the tiles of each size of card, beside the naive form, and the errors of ours."""
    shape = (64, 600, 32) if small else (4096, 65_536, 1024)  # tokens, words, width
    best = ceiling(shape, device)
    yield Figure("matmul ceiling", "TFLOP/s", best / 1e12)
    tiles = {f"ours, tiles of {size} MiB": kernel_check.fused(size << 20) for size in (128, 512)}
    for name, function in (tiles | {"naive": kernel_check.naive}).items():
        yield from speed(name, function, shape, best, device)
    for what, error, bound in kernel_check.logprob_errors(device):
        yield Figure(f"ours: {what}", "", error, bound, "<=")
    for name, function in tiles.items() if device == "cuda" else ():
        for what, error, bound in kernel_check.logprob_errors(device, function, (512, 300_000, 256)):
            yield Figure(f"{name}: {what}", "", error, bound, "<=")


def speed(name: str, function: LogProb, shape: tuple[int, int, int], best: float, device: str) -> Iterator[Figure]:
    """The rates of one variant, and on a GPU its peak above the inputs (gradients included), or that it failed."""
    hidden, weight, targets = kernel_check.logprob_inputs(shape, device)

    def both() -> None:
        hidden.grad = weight.grad = None
        logprobs, entropies = function(hidden, weight, targets)
        with_entropy = entropies is not None and entropies.requires_grad
        (logprobs.sum() + entropies.sum() if with_entropy else logprobs.sum()).backward()

    def forward() -> None:
        with torch.no_grad():
            function(hidden, weight, targets)

    try:
        for what, factor, call in (("forward", 1, forward), ("forward + backward", 3, both)):
            taken, work = seconds(call, device), factor * 2.0 * math.prod(shape)
            note = f"{1e3 * taken:.1f} ms"
            yield Figure(f"{name}: {what}", "TFLOP/s", work / taken / 1e12, best / 1e12, note=note)
        if device == "cuda":
            hidden.grad = weight.grad = None
            wait(device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            both()
            wait(device)
            peak, least = torch.cuda.max_memory_allocated() - before, (shape[0] + shape[1]) * shape[2] * 2
            yield Figure(f"{name}: peak memory", "MiB", peak / 2**20, least / 2**20, note="to the gradients alone")
    except Exception as error:  # out of memory, a compiler that is not there: the others still count
        yield Figure(name, "failed", math.nan, note=f"{type(error).__name__}: {str(error).strip()[:160]}")
