"""Qwen3-0.6B's true shape with random weights: updates at 16k context, for which prime-rl publishes figures of its own
trainer on one H100."""

import gc
from collections.abc import Iterator

import torch

from tepo.training.probes import update_probe
from tepo.training.probes.models import GROUP, Case
from tepo.training.probes.probe_record import Figure

_UPDATES = (Case("qwen3-0.6b", 16_384, GROUP, 16_384, False), Case("qwen3-0.6b", 16_384, GROUP, 16_384, True))
PRIME_RL = {"tokens/s": 11_900.0, "MFU": 0.111, "GiB": 12.5}  # its benchmarks/results/BENCHMARKS.md


def measure(device: str, small: bool) -> Iterator[Figure]:
    """Peak memory, MFU and tokens a second, with and without checkpointing."""
    for case in (update_probe.SIZES["small"],) if small else _UPDATES:
        found = update_probe.measure(case, device, turns=1)
        name = f"{case.shape}, {case.context} tokens{', checkpointing' if case.checkpointing else ''}"
        for figure in update_probe.speed(found):
            yield Figure(f"{name}: {figure.name}", figure.unit, figure.ours, figure.limit, figure.must, figure.note)
        if device == "cuda":
            yield Figure(f"{name}: peak memory", "GiB", found["peak_gib"])
            yield from beside(case, found)
            gc.collect()
            torch.cuda.empty_cache()


def beside(case: Case, found: dict) -> Iterator[Figure]:
    """Ours against prime-rl's published figures, where the shape is theirs."""
    if case.shape != "qwen3-0.6b" or not found["peak_rate"]:
        return
    kind = "checkpointing" if case.checkpointing else "nothing recomputed"
    ours = {"MFU": found["rate"] / found["peak_rate"], "tokens/s": found["tokens_per_second"], "GiB": found["peak_gib"]}
    for what, published in PRIME_RL.items():
        unit = "share" if what == "MFU" else what
        yield Figure(f"prime-rl beside, {kind}: {what}", unit, ours[what], published, note="published, one H100")
