"""`tepo train` with the laptop policy in bfloat16: one run to its end, and one that is killed (`kill -9`) and goes on.

On a CPU both must end with the same bits. On a GPU the docs promise that up to the order in which its kernels add, so
there the distance is only reported, and both must finish.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file

from perf.gpu.runs import finish, kill_half_way, rows, start
from tepo.training.metrics.metrics_log import VOLATILE
from tepo.training.probes.probe_record import Figure

_SMALL = ("train.prompts_per_step=8", "train.samples_per_prompt=4", "train.mini_batch_prompts=4")
_RUN = ("train.max_new_tokens=40", "model.dtype=bfloat16", "sampler=torch", "engine=torch")


def measure(device: str, small: bool) -> Iterator[Figure]:
    """Both runs side by side, then their distance."""
    steps = 3 if small else 8
    words = [*_RUN, *(_SMALL if small else ()), f"train.steps={steps}", f"engine.device={device}"]
    with tempfile.TemporaryDirectory() as name:
        whole, resumed = Path(name) / "whole", Path(name) / "resumed"
        beside = start(words, whole)
        done = kill_half_way(words, resumed, steps)
        finish(start(words, resumed))
        finish(beside)
        yield Figure("steps before the kill", "steps", done, steps)
        yield Figure("steps of the resumed run", "steps", len(rows(resumed)), steps, ">=")
        yield from distance(rows(whole), rows(resumed), device)
        yield from apart(weights(whole), weights(resumed), device)
        seconds = [row["timing_s/step"] for row in rows(whole)[1:]]
        tokens = sum(row["perf/sampled_tokens"] for row in rows(whole)[1:])
        yield Figure("a step", "s", sum(seconds) / len(seconds), note=f"{tokens / sum(seconds):.0f} sampled tokens/s")


def weights(store: Path) -> dict[str, torch.Tensor]:
    """Weights of the last checkpoint."""
    return load_file(max(store.glob("*/checkpoints/step_*/model.safetensors")))


def distance(one: list[dict], other: list[dict], device: str) -> Iterator[Figure]:
    """Steps whose metrics are equal to the last bit."""
    lasting = [[{k: v for k, v in row.items() if not k.startswith(VOLATILE)} for row in run] for run in (one, other)]
    same = sum(a == b for a, b in zip(*lasting, strict=True))
    yield Figure("steps with equal metrics, killed or not", "steps", same, len(one), ">=" if device == "cpu" else "")


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], device: str) -> Iterator[Figure]:
    """The largest difference of a weight."""
    most = max(float((one[name].float() - other[name].float()).abs().max()) for name in one)
    yield Figure("largest difference of a weight", "", most, 0.0, "<=" if device == "cpu" else "")
