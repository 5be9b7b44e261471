"""scale=single_gpu on the true shapes of Qwen2.5-0.5B and 1.5B with random weights: the peak of the updates against the
plan with each optimiser, their MFU at 4k tokens, and sampling with and without graphs."""

import gc
from collections.abc import Iterator

import torch

from perf.gpu.update import planned
from tepo.training.memory import GIB
from tepo.training.probes import sampler, update
from tepo.training.probes.models import GROUP, Case
from tepo.training.probes.record import Figure
from tepo.training.probes.timing import bandwidth

_CONTEXT, _MICRO = 4096, 16_384
_UPDATES = (
    Case("qwen2.5-0.5b", _CONTEXT, 4 * GROUP, _MICRO, False),
    Case("qwen2.5-0.5b", _CONTEXT, 4 * GROUP, _MICRO, True),
    Case("qwen2.5-1.5b", _CONTEXT, 2 * GROUP, _MICRO, True),
    Case("qwen2.5-1.5b", _CONTEXT, 2 * GROUP, _MICRO, True, optimizer="adamw_8bit"),
    Case("qwen2.5-1.5b", _CONTEXT, 2 * GROUP, _MICRO, True, offload=True),
)
_SMALL = (update.SIZES["small"], Case("small", 300, 2 * GROUP, 512, True, offload=True))
_DRAW = sampler.Case("qwen2.5-1.5b", 256, 256)


def measure(device: str, small: bool) -> Iterator[Figure]:
    """Memory, MFU and tokens a second."""
    for case in _SMALL if small else _UPDATES:
        found = update.measure(case, device, turns=1)
        for figure in update.speed(found):
            yield Figure(f"{_name(case)}: {figure.name}", figure.unit, figure.ours, figure.limit, note=figure.note)
        if device == "cuda":
            yield Figure(f"{_name(case)}: peak memory, to the plan", "GiB", found["peak_gib"], planned(case) / GIB)
            gc.collect()
            torch.cuda.empty_cache()
    yield from sampled(device, sampler.SIZES["small"] if small else _DRAW)


def _name(case: Case) -> str:
    kept = "optimiser in main memory" if case.offload else case.optimizer
    return f"{case.shape}, {case.context} tokens, {kept}{', checkpointing' if case.checkpointing else ''}"


def sampled(device: str, case: sampler.Case) -> Iterator[Figure]:
    """Tokens a second to what the memory's bandwidth allows."""
    model = sampler.model_of(case.shape, device)
    limit = bandwidth(device) / sampler.bytes_per_token(model, case)
    for graphs in (True, False):
        found = sampler.draw(model, case, graphs=graphs)
        how = "sampled with graphs" if graphs else "sampled without graphs"
        name = f"{case.shape}, {case.rows} rows of {case.new_tokens} tokens: {how}"
        yield Figure(name, "tokens/s", found["tokens"] / found["seconds"], limit)
