"""Use that a step made of its machine: throughput, MFU, memory.

Names are those of verl where it has one (verl/trainer/ppo/metric_utils.py, verl/workers/fsdp_workers.py);
docs/metrics.md#of-the-machine says what each counts. Of equal runs they differ.
"""

import resource
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from transformers import PretrainedConfig

from tepo.config.run_config import ModelConfig
from tepo.policy.model.shapes import Shape
from tepo.training.distributed.comm import Comm
from tepo.training.distributed.liveness import ACTIVITY
from tepo.training.resources.gpu_cards import GIB, peak_operations
from tepo.training.rollout_batch import FlatRollout

ROLLOUT = ("gen", "reward", "gather")  # the sections of one phase, in which ranks sample, grade and meet


class Size(NamedTuple):
    """Size of a rollout as the model sees it, each prompt once a group."""

    tokens: float  # pushed
    pairs: float  # of a token and one that it attends to, doubled: without a common prompt the squared lengths

    @classmethod
    def of(cls, rollout: FlatRollout) -> "Size":
        prompts = np.array([len(group.prompt.tokens) for group in rollout.groups], dtype=float)
        lengths = rollout.lengths.astype(float)
        full = (np.repeat(prompts, rollout.group_size) + lengths) ** 2
        shared = (rollout.group_size - 1) * prompts**2
        return cls(float(prompts.sum() + lengths.sum()), float(full.sum() - shared.sum()))

    def plus(self, other: "Size", times: int) -> "Size":
        return Size(self.tokens + times * other.tokens, self.pairs + times * other.pairs)


NOTHING = Size(0.0, 0.0)


@dataclass
class TokenCounts:
    """Tokens that a step has sampled, scored and trained, of all ranks where nothing else is said."""

    sampled: float = 0.0  # response tokens of the prompts consumed by the rollouts that were drawn
    scored: Size = NOTHING  # of all log-prob passes before the updates
    trained: Size = NOTHING  # of the updates, each epoch counted
    batch: float = 0.0  # prompt and response tokens of the trained sequences, each with its prompt: as verl counts
    hidden: float = 0.0  # seconds of drawing beside updates, on this rank

    def score(self, rollout: FlatRollout, passes: int) -> None:
        """Count log-prob passes over a rollout."""
        self.scored = self.scored.plus(Size.of(rollout), passes)

    def train(self, rollout: FlatRollout, epochs: int) -> None:
        """Count the updates on a rollout."""
        self.trained = self.trained.plus(Size.of(rollout), epochs)
        prompts = sum(len(group.prompt.tokens) for group in rollout.groups)
        self.batch += float(rollout.lengths.sum()) + rollout.group_size * prompts


def step_figures(
    timings: Mapping[str, float],
    work: TokenCounts,
    comm: Comm | None,
    device: torch.device,
    model: ModelConfig,
    config: PretrainedConfig,
) -> dict[str, float]:
    """Measure the above, on every rank: the last thing of a step. The checkpoint is the one that was begun after the
    step before, which is in the seconds of neither. timings: `StepMetrics.timings`. config: the model's own."""
    peaks = {"perf/cpu_memory_used_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    if torch.cuda.is_initialized():
        peaks["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated() / GIB
        peaks["perf/max_memory_reserved_gb"] = torch.cuda.max_memory_reserved() / GIB
    gathered = [peaks] if comm is None else comm.all_gather_object(peaks)
    seconds = phases({name.removeprefix("timing_s/"): value for name, value in timings.items() if "timing_s/" in name})
    drawing, ranks = seconds["gen"] + work.hidden, len(gathered)
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
        "perf/throughput": work.batch / seconds["step"] / ranks,
        "perf/throughput_gen": work.sampled / drawing / ranks if drawing else 0.0,
        "perf/throughput_update_actor": work.trained.tokens / seconds["update_actor"] / ranks,
        **{f"timing_per_token_ms/{name}": 1000 * spent / count for name, (spent, count) in counted.items() if count},
        **_utilisation(work, seconds, ranks, device, model, config),
        **{name: max(rank[name] for rank in gathered) for name in peaks},
    }


def phases(sections: Mapping[str, float]) -> dict[str, float]:
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
) -> dict[str, float]:
    """Shares of the GPUs' peak that log-prob passes and updates reached; nothing where the peak is not known."""
    peak = peak_operations(torch.cuda.get_device_name(device), model.dtype) if device.type == "cuda" else None
    if peak is None:
        return {}
    shape = Shape.of_config(config)
    passes = 2 if model.lora_rank else 3  # of frozen weights no gradient is computed
    trained = passes * shape.forward_operations(*work.trained) / (seconds["update_actor"] * peak * ranks)
    shares = {"perf/mfu/actor": trained}
    if work.scored.tokens:
        operations = shape.forward_operations(*work.scored)
        shares["perf/mfu/actor_infer"] = operations / (seconds["old_log_prob"] * peak * ranks)
    return shares
