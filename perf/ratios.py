"""Two sides measured in turn, and their ratio: what a neighbour on the machine takes for a while falls on both."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class BenchmarkRow:
    """One line: our figure and the peer's, their ratio and the target it is held to, if any."""

    name: str
    unit: str
    ours: float
    peer: float
    ratio: float
    target: float | None = None
    higher_is_better: bool = False
    guarded: bool = False  # CI compares the ratio of the short form with the baseline of the same kind of CPU

    @property
    def met(self) -> bool:
        if self.target is None:
            return True
        return self.ratio >= self.target if self.higher_is_better else self.ratio <= self.target

    def worse(self, baseline: float) -> float:
        """Factor by which the ratio is worse than the baseline, 1 or less when it is not."""
        return baseline / self.ratio if self.higher_is_better else self.ratio / baseline


_VECTOR_UNITS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "asimd": "NEON"}  # by flag, the widest first


def cpu_kind(cpuinfo: str) -> str:
    """Model and widest vector unit of the first CPU in the text of /proc/cpuinfo, as "AMD EPYC, AVX-512"."""
    lines = (line.partition(":") for line in reversed(cpuinfo.splitlines()))
    values = {key.strip().lower(): value.strip() for key, _, value in lines}
    flags = values.get("flags", values.get("features", "")).split()
    units = [unit for flag, unit in _VECTOR_UNITS.items() if flag in flags]
    return ", ".join([values.get("model name") or platform.processor() or platform.machine(), *units[:1]])


def machine() -> dict[str, str]:
    """Machine and versions that a result comes from. `cpu` is the kind of CPU, under which results are stored."""
    return {
        "cpu": cpu_kind(Path("/proc/cpuinfo").read_text()),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers")},
    }


class Unavailable(Exception):
    """Package or program that a benchmark misses, in words."""


def in_turn(sides: dict[str, Callable[[int], T]], turns: int, warm: int = 1) -> dict[str, list[T]]:
    """Collect what each side gives in each turn, called with the turn's number, after `warm` turns to warm up."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for turn in range(warm + turns):
        for name, side in sides.items():
            found[name].append(side(turn))
    return {name: values[warm:] for name, values in found.items()}


def beside(
    name: str, unit: str, ours: list[float], peer: list[float], target: float | None, **kind: Any
) -> BenchmarkRow:
    """The row of two sides: the median of each, and of the ratio turn by turn."""
    ratio = median(one / other for one, other in zip(ours, peer, strict=True))
    return BenchmarkRow(name, unit, median(ours), median(peer), ratio, target, **kind)


def cpu_seconds(work: Callable[[], Any]) -> Callable[[int], float]:
    """A side that costs the CPU seconds of this process in a call."""

    def run(turn: int) -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    return run


def linear_shapes(config: Any) -> list[tuple[int, int]]:
    """[inputs, outputs] of a llama-like model's linear layers, by its configuration: queries with keys and values,
    output, gate with up, down; head."""
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    width = getattr(config, "head_dim", None) or hidden // heads
    projected = hidden, (heads + 2 * config.num_key_value_heads) * width
    layer = [projected, (heads * width, hidden), (hidden, 2 * inner), (inner, hidden)]
    return layer * config.num_hidden_layers + [(hidden, config.vocab_size)]


def products(
    config: Any, tokens: int, backward: bool = True, times: int = 1, dtype: str = "float32"
) -> Callable[[], None]:
    """The matrix products of a model's linear layers over some tokens, one for each layer and two more in a backward: a
    limit that a slower or faster CPU moves as it moves the cost beside it."""
    import torch

    def matrix(*shape: int) -> "torch.Tensor":
        return torch.randn(*shape).to(getattr(torch, dtype))

    cases = [
        (matrix(tokens, rows), matrix(rows, columns), matrix(tokens, columns))
        for rows, columns in linear_shapes(config)
    ]

    def run() -> None:
        for _ in range(times):
            for left, weight, gradient in cases:
                _ = (left @ weight, gradient @ weight.T, left.T @ gradient) if backward else left @ weight

    return run
