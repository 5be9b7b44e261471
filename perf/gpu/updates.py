"""Parts one_gpu and update: `loop.update` with the TEPO objective on random models of true shapes.

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
from perf.gpu.record import Figure
from perf.gpu.runs import need
from perf.gpu.timing import wait
from tepo.objectives import load_objective
from tepo.policy.model.packed_attention import choose_kernels
from tepo.policy.model.shapes import Shape
from tepo.policy.packing.packing import Packed
from tepo.sampling.gap import GapAlarm
from tepo.training import loop
from tepo.training.engine.torch_engine import TorchEngine
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.resources.gpu_cards import GIB, peak_operations
from tepo.training.resources.memory import memory
from tepo.training.run import Run
from tepo.training.update import Updater

SMALL = Case("small", 300, 2 * GROUP, 512, True, shortest=16)


def one_gpu(device: str, small: bool) -> Iterator[Figure]:
    """Updates of scale=single_gpu: their peak against the plan with each optimiser (the 8-bit one needs bitsandbytes),
    MFU at 4k tokens, what checkpointing costs."""
    half = SMALL if small else Case("qwen2.5-0.5b", 4096, 4 * GROUP, 16_384, True)
    larger = SMALL if small else Case("qwen2.5-1.5b", 4096, 2 * GROUP, 16_384, True)
    cases = [] if small else [replace(half, checkpointing=False), half]
    for case in (*cases, larger, replace(larger, offload=True), replace(larger, optimizer="adamw_8bit")):
        if case.optimizer == "adamw_8bit":
            need("bitsandbytes")
        yield from measured(case, device, "optimiser in main memory" if case.offload else case.optimizer)


def update(device: str, small: bool) -> Iterator[Figure]:
    """Four layers of Qwen2.5-7B, responses of 0.5k to 8k, whose memory must not exceed the plan; and Qwen3-0.6B's true
    shape at 16k, for which prime-rl publishes figures (perf/gpu/__main__.py)."""
    four_layers = Case("qwen2.5-7b, 4 layers", 8192, 4 * GROUP, 16_384, True, shortest=512)
    yield from measured(SMALL if small else four_layers, device, "", "<=", turns=2)
    if not small:
        for checkpointing in (False, True):
            yield from measured(Case("qwen3-0.6b", 16_384, GROUP, 16_384, checkpointing), device, "")


def measured(case: Case, device: str, optimizer: str, must: str = "", turns: int = 1) -> Iterator[Figure]:
    """Rates and memory of the updates of complete rollouts, the median of `turns` after one to warm up. The limit of a
    rate is the maker's peak, and so the ratio the MFU; that of memory is what `tepo plan` counts, without CUDA's own
    and fragments."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    words = (case.shape, f"{case.context} tokens", optimizer, "checkpointing" * case.checkpointing)
    name, model, config = ", ".join(filter(None, words)), model_of(case.shape, device), run_config(case)
    choose_kernels(model, case.kernels)
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
    peak = peak_operations(torch.cuda.get_device_name(), "bfloat16") if device == "cuda" else None
    yield Figure(f"{name}: tokens trained", "tokens/s", len(packed.tokens) / spent)
    rate = operations(model, packed) / spent / 1e12
    yield Figure(f"{name}: updates, the ratio is the MFU", "TFLOP/s", rate, peak and peak / 1e12)
    share = median(scoring[1:]) / spent
    yield Figure(f"{name}: scoring of the old policy", "share", share, note="of the time of an update")
    kind, values = SHAPES[case.shape]
    plan = memory(Run(config, sizes=Shape.of_config(AutoConfig.for_model(kind, **values))))
    if device == "cuda":
        peak, limit = torch.cuda.max_memory_allocated(), plan.updating - plan.context - plan.fragments
        yield Figure(f"{name}: peak memory, to the plan", "GiB", peak / GIB, limit / GIB, must)
        yield _waits(name, updater, rollout)


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


def _waits(name: str, updater: Updater, rollout: Any) -> Figure:
    """How often the host waits for the GPU in the scoring and the updates of a rollout, and where."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            updater.compute_old_logprobs(rollout)
            loop.update(updater, rollout, 0, StepMetrics())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    lines = [f"{one.filename.rpartition('/')[2]}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]
    places = "; ".join(f"{lines.count(line)} x {line}" for line in sorted(set(lines)))
    return Figure(f"{name}: waits for the GPU", "an update", len(lines), note=places)


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
