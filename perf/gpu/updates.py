"""Parts one_gpu, half_billion and update: `loop.update` with the TEPO objective on random models of true shapes.

MFU counts 6 operations for each weight and token, 12 for each pair of query and key it sees, head and number, nothing
recomputed and no log-probs of the old policy, over the GPU's dense bf16 peak. Tokens are those pushed through the
model.
"""

import contextlib
import gc
import warnings
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from transformers import AutoConfig

from perf.gpu.models import GROUP, SHAPES, Case, model_of, rollout_of, run_config
from perf.gpu.record import Figure, named
from perf.gpu.runs import need
from perf.gpu.timing import wait
from tepo.objectives import load_objective
from tepo.policy.model.shapes import Shape
from tepo.policy.packing.packing import Packed
from tepo.sampling.gap import GapAlarm
from tepo.training import loop
from tepo.training.engine.torch_engine import TorchEngine
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.resources.gpu_cards import peak_operations
from tepo.training.resources.memory import GIB, memory
from tepo.training.update import Updater

_SMALL = Case("small", 300, 2 * GROUP, 512, True, shortest=16)
_FOUR_LAYERS = Case("qwen2.5-7b, 4 layers", 8192, 4 * GROUP, 16_384, True, shortest=512)


def one_gpu_cases(small: bool) -> list[Case]:
    """Both shapes with AdamW; one of them offloaded, then with 8-bit moments, which need bitsandbytes."""
    if small:
        return [_SMALL, replace(_SMALL, offload=True), replace(_SMALL, optimizer="adamw_8bit")]
    half = Case("qwen2.5-0.5b", 4096, 4 * GROUP, 16_384, True)
    larger = Case("qwen2.5-1.5b", 4096, 2 * GROUP, 16_384, True)
    others = replace(larger, offload=True), replace(larger, optimizer="adamw_8bit")
    return [replace(half, checkpointing=False), half, larger, *others]


def one_gpu(device: str, small: bool) -> Iterator[Figure]:
    """Updates of scale=single_gpu: their peak against the plan with each optimiser, MFU at 4k tokens, what
    checkpointing costs."""
    for case in one_gpu_cases(small):
        if case.optimizer == "adamw_8bit":
            need("bitsandbytes")
        measured = measure(case, device, turns=1)
        kept = "optimiser in main memory" if case.offload else case.optimizer
        name = f"{case.shape}, {case.context} tokens, {kept}{', checkpointing' if case.checkpointing else ''}"
        yield from named(name, speed(measured))
        if device == "cuda":
            yield Figure(f"{name}: peak memory, to the plan", "GiB", measured["peak_gib"], planned(case) / GIB)


def half_billion(device: str, small: bool) -> Iterator[Figure]:
    """Qwen3-0.6B's true shape at 16k, for which prime-rl publishes figures (perf/gpu/__main__.py)."""
    for checkpointing in (True,) if small else (False, True):
        case = _SMALL if small else Case("qwen3-0.6b", 16_384, GROUP, 16_384, checkpointing)
        measured = measure(case, device, turns=1)
        name = f"{case.shape}, {case.context} tokens{', checkpointing' if checkpointing else ''}"
        yield from named(name, speed(measured))
        if device == "cuda":
            yield Figure(f"{name}: peak memory", "GiB", measured["peak_gib"])


def update(device: str, small: bool) -> Iterator[Figure]:
    """Four layers of Qwen2.5-7B, responses of 0.5k to 8k: speed and memory, which must not exceed the plan."""
    case = _SMALL if small else _FOUR_LAYERS
    measured, plan = measure(case, device, turns=2 if device == "cuda" else 1), planned(case) / GIB
    yield from speed(measured)
    if device == "cuda":
        yield Figure("peak memory, to the plan", "GiB", measured["peak_gib"], plan, "<=")
        yield Figure("reserved by torch, to its peak", "GiB", measured["reserved_gib"], measured["peak_gib"])
    else:
        yield Figure("planned peak memory", "GiB", plan)


def planned(case: Case) -> float:
    """Bytes of the updates as `tepo plan` counts them, without CUDA's own and fragments: what torch has allocated."""
    kind, values = SHAPES[case.shape]
    found = memory(run_config(case), Shape.of_config(AutoConfig.for_model(kind, **values)))
    return found.updating - found.context - found.fragments


def speed(measured: dict[str, Any]) -> Iterator[Figure]:
    """The figures of a measured case: the limit of a rate is the maker's peak, and so the ratio the MFU."""
    yield Figure("tokens trained", "tokens/s", measured["tokens_per_second"], note=measured["shape"])
    peak = measured["peak_rate"] / 1e12 if measured["peak_rate"] else None
    yield Figure("updates, the ratio is the MFU", "TFLOP/s", measured["rate"] / 1e12, peak)
    yield Figure("scoring of the old policy", "share", measured["scoring_share"], note="of the time of an update")
    if "waits" in measured:
        yield Figure("waits for the GPU", "an update", measured["waits"], note=measured["places"])


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


def measure(case: Case, device: str, turns: int) -> dict[str, Any]:
    """Rates and memory of complete rollouts' updates, the median of `turns` after one to warm up."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    model, config = model_of(case.shape, device), run_config(case)
    if case.checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    alarm = GapAlarm(float("inf"), temperature=1.0, dtypes=("bfloat16", "bfloat16"))
    updater = Updater(config, load_objective("tepo"), TorchEngine(model, config.train, config.engine), alarm)
    rollout = rollout_of(case, SHAPES[case.shape][1]["vocab_size"], device)
    packed = rollout.pack(range(case.sequences))
    taken, scoring = [], []
    for turn in range(turns + 1):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        recorder = _Synchronised(device)
        with recorder.time("old_log_prob"):
            updater.compute_old_logprobs(rollout)
        loop.update(updater, rollout, turn, recorder)
        taken.append(recorder.seconds["update_actor"])
        scoring.append(recorder.seconds["old_log_prob"])
    spent = median(taken[1:])
    measured = {"shape": case.shape, "rate": operations(model, packed) / spent, "peak_rate": None}
    measured |= {"tokens_per_second": len(packed.tokens) / spent, "scoring_share": median(scoring[1:]) / spent}
    if device == "cuda":
        measured["peak_rate"] = peak_operations(torch.cuda.get_device_name(), "bfloat16")
        measured["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        measured["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
        measured["waits"], measured["places"] = _waits(updater, rollout)
    return measured


def _waits(updater: Updater, rollout: Any) -> tuple[int, str]:
    """Count how often the host waits for the GPU in the scoring and the updates of a rollout, and where."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            updater.compute_old_logprobs(rollout)
            loop.update(updater, rollout, 0, StepMetrics())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    lines = [f"{one.filename.rpartition('/')[2]}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]
    return len(lines), "; ".join(f"{lines.count(line)} x {line}" for line in sorted(set(lines)))


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
