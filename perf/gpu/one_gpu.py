"""The updates of scale=single_gpu on the true shapes of Qwen2.5-0.5B and 1.5B with random weights: their peak against
the plan with each optimiser, their MFU at 4k tokens, and what checkpointing costs."""

import gc
from collections.abc import Iterator

import torch

from perf.gpu.runs import need
from perf.gpu.update import planned
from tepo.training.probes import update_probe
from tepo.training.probes.models import GROUP, Case
from tepo.training.probes.probe_record import Figure
from tepo.training.resources.memory import GIB

_CONTEXT, _MICRO = 4096, 16_384
_UPDATES = (
    Case("qwen2.5-0.5b", _CONTEXT, 4 * GROUP, _MICRO, False),
    Case("qwen2.5-0.5b", _CONTEXT, 4 * GROUP, _MICRO, True),
    Case("qwen2.5-1.5b", _CONTEXT, 2 * GROUP, _MICRO, True),
    Case("qwen2.5-1.5b", _CONTEXT, 2 * GROUP, _MICRO, True, offload=True),
    Case("qwen2.5-1.5b", _CONTEXT, 2 * GROUP, _MICRO, True, optimizer="adamw_8bit"),  # last: it needs bitsandbytes
)
_SMALL = (
    update_probe.SIZES["small"],
    Case("small", 300, 2 * GROUP, 512, True, offload=True),
    Case("small", 300, 2 * GROUP, 512, True, optimizer="adamw_8bit"),
)


def measure(device: str, small: bool) -> Iterator[Figure]:
    """Memory, MFU and tokens a second."""
    for case in _SMALL if small else _UPDATES:
        if case.optimizer == "adamw_8bit":
            need("bitsandbytes")
        found = update_probe.measure(case, device, turns=1)
        for figure in update_probe.speed(found):
            yield Figure(f"{_name(case)}: {figure.name}", figure.unit, figure.ours, figure.limit, note=figure.note)
        if device == "cuda":
            yield Figure(f"{_name(case)}: peak memory, to the plan", "GiB", found["peak_gib"], planned(case) / GIB)
            gc.collect()
            torch.cuda.empty_cache()


def _name(case: Case) -> str:
    kept = "optimiser in main memory" if case.offload else case.optimizer
    return f"{case.shape}, {case.context} tokens, {kept}{', checkpointing' if case.checkpointing else ''}"
