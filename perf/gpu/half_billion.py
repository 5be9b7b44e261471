"""The true shape of Qwen2.5-0.5B with random weights: updates at 8k context and sampling; and Qwen3-0.6B at 16k, for
which prime-rl publishes figures of its own trainer on one H100."""

import gc
from collections.abc import Iterator

import torch

from tepo.training.probes import sampler, update
from tepo.training.probes.models import GROUP, Case
from tepo.training.probes.record import Figure
from tepo.training.probes.timing import bandwidth

_UPDATES = (
    Case("qwen2.5-0.5b", 8192, 2 * GROUP, 32_768, True),
    Case("qwen3-0.6b", 16_384, GROUP, 16_384, False),
    Case("qwen3-0.6b", 16_384, GROUP, 16_384, True),
)
_DRAW = sampler.Case("qwen2.5-0.5b", 256, 256)
PRIME_RL = {"tokens/s": 11_900.0, "MFU": 0.111, "GiB": 12.5}  # its benchmarks/results/BENCHMARKS.md


def measure(device: str, small: bool) -> Iterator[Figure]:
    """Peak memory, MFU and tokens a second."""
    for case in (update.SIZES["small"],) if small else _UPDATES:
        found = update.measure(case, device, turns=1)
        name = f"{case.shape}, {case.context} tokens{', checkpointing' if case.checkpointing else ''}"
        for figure in update.speed(found):
            yield Figure(f"{name}: {figure.name}", figure.unit, figure.ours, figure.limit, figure.must, figure.note)
        if device == "cuda":
            yield Figure(f"{name}: peak memory", "GiB", found["peak_gib"])
            yield from beside(case, found)
            gc.collect()
            torch.cuda.empty_cache()
    yield from sampled(device, sampler.SIZES["small"] if small else _DRAW)


def beside(case: Case, found: dict) -> Iterator[Figure]:
    """Ours against prime-rl's published figures, where the shape is theirs."""
    if case.shape != "qwen3-0.6b" or not found["peak_rate"]:
        return
    kind = "checkpointing" if case.checkpointing else "nothing recomputed"
    ours = {"MFU": found["rate"] / found["peak_rate"], "tokens/s": found["tokens_per_second"], "GiB": found["peak_gib"]}
    for what, published in PRIME_RL.items():
        unit = "share" if what == "MFU" else what
        yield Figure(f"prime-rl beside, {kind}: {what}", unit, ours[what], published, note="published, one H100")


def sampled(device: str, case: sampler.Case) -> Iterator[Figure]:
    """Sampled tokens a second to what the memory's bandwidth allows."""
    model = sampler.model_of(case.shape, device)
    found = sampler.draw(model, case, graphs=True)
    limit = bandwidth(device) / sampler.bytes_per_token(model, case)
    name = f"{case.shape}, {case.rows} rows of {case.new_tokens} tokens: sampled"
    yield Figure(name, "tokens/s", found["tokens"] / found["seconds"], limit)
    if device == "cuda":
        yield Figure(f"{name}, peak memory", "GiB", found["peak_gib"])
