"""`loop.update` with the TEPO objective on random models: tokens a second, MFU, peak memory, waits of the host.

MFU counts 6 operations for each weight and token, 12 for each pair of query and key it sees, head and number, nothing
recomputed and no log-probs of the old policy, over the GPU's dense bf16 peak. Tokens are those pushed through the
model.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from tepo.objectives import load_objective
from tepo.policy.packing.packing import Packed
from tepo.sampling.gap import GapAlarm
from tepo.training import loop
from tepo.training.engine.torch_engine import TorchEngine
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.probes.models import GROUP, SHAPES, Case, model_of, rollout_of, run_config
from tepo.training.probes.probe_record import Figure
from tepo.training.probes.timing import wait
from tepo.training.resources.gpu_cards import peak_operations
from tepo.training.update import Updater

SIZES = {
    "small": Case("small", 300, 2 * GROUP, 512, True, shortest=16),
    "short": Case("short", 4096, 4 * GROUP, 16_384, True, shortest=512),
    "full": Case("qwen2.5-7b, 4 layers", 8192, 4 * GROUP, 16_384, True, shortest=512),
}


class _Synchronised(StepMetrics):
    """Waits for the GPU where a section ends, so that it takes its own time."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    @contextlib.contextmanager
    def time(self, section: str) -> Iterator[None]:
        with super().time(section):
            yield
            wait(self.device)


def figures(device: str, case: Case) -> Iterator[Figure]:
    """Speed, memory and waits of one case."""
    measured = measure(case, device, turns=1 if device == "cpu" else 3)
    yield from speed(measured)
    if device == "cuda":
        yield Figure("peak memory", "GiB", measured["peak_gib"])


def speed(measured: dict[str, Any]) -> Iterator[Figure]:
    """The figures of a measured case: the limit of a rate is the maker's peak, and so the ratio the MFU."""
    yield Figure("tokens trained", "tokens/s", measured["tokens_per_second"], note=measured["shape"])
    peak = measured["peak_rate"] / 1e12 if measured["peak_rate"] else None
    yield Figure("updates, the ratio is the MFU", "TFLOP/s", measured["rate"] / 1e12, peak)
    yield Figure("scoring of the old policy", "share", measured["scoring_share"], note="of the time of an update")
    if "waits" in measured:
        yield Figure("waits for the GPU", "an update", measured["waits"], note="; ".join(measured["places"]))


def measure(case: Case, device: str, turns: int) -> dict[str, Any]:
    """Seconds, rates and memory of complete rollouts' updates, the median of `turns` after one to warm up."""
    updater = _updater(case, device)
    rollout = rollout_of(case, SHAPES[case.shape][1]["vocab_size"], device)
    packed = rollout.pack(range(case.sequences))
    taken, scoring = [], []
    for turn in range(turns + 1):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        recorder = _Synchronised(device)
        with recorder.time("old_log_prob"):
            updater.passes.compute_old_logprobs(rollout)
        updates = loop.update(updater, rollout, turn, recorder)["actor/updates"]
        taken.append(recorder.seconds["update_actor"])
        scoring.append(recorder.seconds["old_log_prob"])
    spent = sorted(taken[1:])[turns // 2]
    rate = operations(updater.engine.model, packed) / spent
    measured = {"shape": case.shape, "tokens": len(packed.tokens), "first_seconds": taken[0], "rate": rate}
    measured |= {"seconds_per_update": spent / updates, "tokens_per_second": len(packed.tokens) / spent}
    measured |= {"scoring_share": sorted(scoring[1:])[turns // 2] / spent, "peak_rate": None}
    if device == "cuda":
        measured["peak_rate"] = peak_operations(torch.cuda.get_device_name(), "bfloat16")
        measured["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        measured["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
        measured |= _waits(updater, rollout)
    return measured


def _updater(case: Case, device: str) -> Updater:
    """The embedded engine on a random model."""
    model, config = model_of(case.shape, device), run_config(case)
    if case.checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    alarm = GapAlarm(float("inf"), temperature=1.0, dtypes=("bfloat16", "bfloat16"))
    return Updater(config, load_objective("tepo"), TorchEngine(model, config.train, config.engine), alarm)


def _waits(updater: Updater, rollout: Any) -> dict[str, Any]:
    """Count how often the host waits for the GPU in the scoring and the updates of a rollout, as torch tells, and
    where."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            updater.passes.compute_old_logprobs(rollout)
            loop.update(updater, rollout, 0, StepMetrics())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    lines = [f"{one.filename.rpartition('/')[2]}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]
    return {"waits": len(lines), "places": [f"{lines.count(line)} x {line}" for line in sorted(set(lines))]}


def operations(model: Any, packed: Packed) -> float:
    """Operations that the forward and backward of a packed rollout cannot do without."""
    config = model.config
    head = model.get_output_embeddings().weight.numel()
    layers = sum(p.numel() for p in model.get_decoder().layers.parameters())
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    prompts, spans = packed.prompt_spans, packed.spans
    pairs = float((prompts * (prompts + 1) / 2).sum() + (spans * (prompts[packed.groups] + (spans + 1) / 2)).sum())
    attention = 12 * config.num_hidden_layers * config.num_attention_heads * width * pairs
    return 6 * (layers * len(packed.tokens) + head * len(packed.targets)) + attention
