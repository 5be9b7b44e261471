"""Two steps of `tepo train scale=single_gpu --evaluate` with vLLM on random weights of Qwen2.5-0.5B's shape: the memory
at the sampler's open, sleep, sync and close, in the updates to the plan, and what is left for the measurer; the gap."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from perf.gpu.random_policy import make
from perf.gpu.runs import finish, measured, need, rows, start
from perf.gpu.taken import Taken
from tepo.sampling.gap import default_bound
from tepo.training.probes.probe_record import Figure
from tepo.training.resources.memory import CONTEXT, GIB, TAKEN

SMALL = ("train.prompts_per_step=8", "train.mini_batch_prompts=4", "train.max_prompt_tokens=400")
SMALL += (
    "train.max_new_tokens=16",
    "train.max_rounds=2",
    "engine.micro_batch_tokens=2048",
    "sampler.memory_fraction=0.2",
)
_GAP = "training/rollout_logprobs_diff_mean"
_STEPS = 2


def words(folder: Path, device: str, small: bool) -> list[str]:
    """Command line of the run, whose policy and problems are made in a folder."""
    made = make(folder, "small" if small else "qwen2.5-0.5b", device)
    os.environ["TEPO_PATH"] = str(folder)
    named = [f"{name}={value}" for name, value in made.items()]
    size = SMALL if small else ("train.prompts_per_step=32",)
    return ["scale=single_gpu", *named, "model.dtype=bfloat16", f"train.steps={_STEPS}", *size]


def measure(device: str, small: bool) -> Iterator[Figure]:
    """The run, traced in its process and watched from this one."""
    need("vllm", "pyarrow", "scipy")
    with tempfile.TemporaryDirectory() as name:
        folder, store, trace = Path(name), Path(name) / "runs", Path(name) / "trace.jsonl"
        given = words(folder, device, small)
        memory = Taken(device)
        with memory.watched() as seen:
            finish(start([*given, "sampler=vllm", "--evaluate"], store, "perf.gpu.traced", str(trace)))
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        yield Figure("steps", "steps", len(rows(store)), _STEPS, ">=")
        yield Figure("benchmarks measured", "", len(measured(store)), 1, ">=")
        yield from gaps(store)
        yield from sections(store, planned(given))
    for kind in dict.fromkeys(line["at"] for line in lines):
        own = [line for line in lines if line["at"] == kind]
        note = f"{own[-1]['allocated']:.2f} GiB allocated by torch, {len(own)} times"
        yield Figure(f"taken after {kind}, at most", "GiB", max(line["taken"] for line in own), note=note)
    ended = max(line["time"] for line in lines if line["at"] == "end of training")
    yield from beside_the_measurer([gib for when, gib in seen if when > ended], seen[0][1], device)


def gaps(store: Path) -> Iterator[Figure]:
    """The gap of sampler and trainer, before the first update and after a sync."""
    found = [row[_GAP] for row in rows(store)]
    for step, gap in enumerate(found, start=1):
        yield Figure(f"gap of sampler and trainer, step {step}", "nats", gap, default_bound("bfloat16"), "<=")


def sections(store: Path, plan: float) -> Iterator[Figure]:
    """Seconds of a step, and on a GPU what is taken at the end of each of its sections; the plan for the updates."""
    last = rows(store)[-1]
    yield Figure("a step", "s", last["timing_s/step"], note=f"{last['perf/throughput_gen']:.0f} sampled tokens/s")
    for name in sorted(name for name in last if name.startswith(TAKEN)):
        section = name.removeprefix(TAKEN)
        limit = plan / GIB if section == "update_actor" else None
        most = max(row.get(name, 0.0) for row in rows(store))
        note = "to the plan" if limit else ""
        yield Figure(f"taken in {section}", "GiB", most, limit, "<=" if limit else "", note)


def planned(given: list[str]) -> float:
    """Bytes that a plan gives the updates of the run."""
    from transformers import AutoConfig

    from tepo.policy.model.shapes import Shape
    from tepo.training.resources.memory import memory
    from tepo_cli.cli_options import compose_run

    config = compose_run([*given, "sampler=vllm"], None)
    return memory(config, Shape.of_config(AutoConfig.from_pretrained(config.model.path))).updating


def beside_the_measurer(seen: list[float], before: float, device: str) -> Iterator[Figure]:
    """Memory that the trainer still holds when the measurer begins: at most a context on a GPU, where nothing else
    comes and goes."""
    least = min(seen, default=float("nan"))
    limit, must = ((before + CONTEXT / GIB), "<=") if device == "cuda" else (None, "")
    yield Figure("taken when measuring begins", "GiB", least, limit, must, "least between training and the end")
    yield Figure("taken in the measurer, at most", "GiB", max(seen, default=float("nan")))
