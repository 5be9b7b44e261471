"""Use that a step made of its machine: throughput, MFU, waiting, memory, the slowest rank.

Names are those of verl where it has one (verl/trainer/ppo/metric_utils.py, verl/workers/fsdp_workers.py);
docs/metrics.md#of-the-machine says what each counts. Of equal runs they differ.
"""

import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from tepo.config.run_config import ModelConfig
from tepo.policy.model.shapes import Shape
from tepo.training.distributed.comm import Comm
from tepo.training.distributed.liveness import ACTIVITY
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.metrics.token_counts import Size, TokenCounts
from tepo.training.resources.gpu_cards import peak_operations
from tepo.training.resources.memory import GIB

ROLLOUT = ("gen", "reward", "gather")  # the sections of one phase, in which ranks sample, grade and meet
Figures = dict[str, float]


@dataclass(frozen=True)
class RankFigures:
    """Figures of one rank. Memory: the peaks since the process began, in GiB."""

    waits: Mapping[str, float]  # seconds by section
    resident: float  # main memory
    allocated: float  # of the GPU, by tensors
    reserved: float  # of the GPU, by torch

    @classmethod
    def of(cls, metrics: StepMetrics) -> "RankFigures":
        gpu = torch.cuda.is_initialized()
        return cls(
            metrics.waits,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            torch.cuda.max_memory_allocated() / GIB if gpu else 0.0,
            torch.cuda.max_memory_reserved() / GIB if gpu else 0.0,
        )


def step_figures(
    metrics: StepMetrics, comm: Comm | None, device: torch.device, model: ModelConfig, config: PretrainedConfig
) -> Figures:
    """Measure timings and all of the above, on every rank: the last thing of a step. The checkpoint is the one that was
    begun after the step before, which is in the seconds of neither. config: the model's own, of its shape."""
    own = RankFigures.of(metrics)
    ranks: list[RankFigures] = [own] if comm is None else comm.all_gather_object(own)
    timings = metrics.timings()
    seconds = phases(metrics.seconds) | {"step": timings["timing_s/step"]}
    work, drawing = metrics.work, seconds["gen"] + metrics.work.hidden
    counted = {
        "gen": (drawing, work.sampled),
        "adv": (seconds["adv"], work.batch),
        "update_actor": (seconds["update_actor"], work.batch),
    }
    saving = ACTIVITY.spent.pop("save_checkpoint", None)
    return {
        **timings,
        **({} if saving is None else {"timing_s/save_checkpoint": saving}),
        "perf/total_num_tokens": work.batch,
        "perf/throughput": work.batch / seconds["step"] / len(ranks),
        "perf/throughput_gen": work.sampled / drawing / len(ranks) if drawing else 0.0,
        "perf/throughput_update_actor": work.trained.tokens / seconds["update_actor"] / len(ranks),
        **{f"timing_per_token_ms/{name}": 1000 * spent / count for name, (spent, count) in counted.items() if count},
        **_utilisation(metrics.work, seconds, len(ranks), device, model, config),
        **(_waiting(ranks, seconds) if comm is not None and len(ranks) > 1 else {}),
        **_memory(ranks),
    }


def phases(sections: Mapping[str, float]) -> Figures:
    """Seconds by phase: `gen` is the rollout, the other sections are phases of their own."""
    others = {name: spent for name, spent in sections.items() if name not in ROLLOUT}
    return {"gen": sum(sections.get(name, 0.0) for name in ROLLOUT)} | others


def _utilisation(
    work: TokenCounts,
    seconds: Mapping[str, float],
    ranks: int,
    device: torch.device,
    model: ModelConfig,
    config: PretrainedConfig,
) -> Figures:
    """Shares of the GPUs' peak that log-prob passes and updates reached; nothing where the peak is not known."""
    if device.type != "cuda":
        return {}
    peak = peak_operations(torch.cuda.get_device_name(device), model.dtype)
    if peak is None:
        return {}
    shape = Shape.of_config(config)
    frozen = model.lora_rank > 0  # no gradient of the weights

    def share(size: Size, passes: int, name: str) -> float:
        return passes * shape.forward_operations(*size) / (seconds[name] * peak * ranks)

    scored = {"perf/mfu/actor_infer": share(work.scored, 1, "old_log_prob")} if work.scored.tokens else {}
    return scored | {"perf/mfu/actor": share(work.trained, 2 if frozen else 3, "update_actor")}


def _waiting(ranks: Sequence[RankFigures], seconds: Mapping[str, float]) -> Figures:
    """Share of each phase that a rank spends in collectives of ours on average; the rank that waited least."""
    totals = [sum(rank.waits.values()) for rank in ranks]
    waits = [phases(rank.waits) | {"step": total} for rank, total in zip(ranks, totals, strict=True)]
    shares = {
        f"perf/bubble/{name}": sum(rank.get(name, 0.0) for rank in waits) / len(ranks) / spent
        for name, spent in seconds.items()
        if spent
    }
    slowest = {"perf/slowest_rank": float(totals.index(min(totals)))}
    return shares | slowest | {"perf/slowest_rank_lag_s": max(totals) - min(totals)}


def _memory(ranks: Sequence[RankFigures]) -> Figures:
    """Peak memory of any rank, and on several which one it is."""
    gpu = any(rank.reserved for rank in ranks)
    most = max(range(len(ranks)), key=lambda number: ranks[number].allocated if gpu else ranks[number].resident)
    found = {"perf/cpu_memory_used_gb": max(rank.resident for rank in ranks)}
    if gpu:
        found["perf/max_memory_allocated_gb"] = max(rank.allocated for rank in ranks)
        found["perf/max_memory_reserved_gb"] = max(rank.reserved for rank in ranks)
    return found | ({"perf/max_memory_rank": float(most)} if len(ranks) > 1 else {})
