"""A self-test of each installed engine: sample, update, sync, checkpoint, kill, resume, on the shipped laptop policy.

A sampler with weights of its own is tried as runs on GPUs use it: in bfloat16, asleep during the updates, and once more
after training to measure what came out.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tepo.common import interpreter
from tepo.common.registry import installed
from tepo.config.run_config import EngineConfig, SamplerConfig
from tepo.jobs.clean_process import in_child
from tepo.jobs.measure import Request, measure
from tepo.sampling.backends import sampler_backend, sampler_kinds
from tepo.training.engine.backends import engine_backend, engine_kinds

TINY = (
    "train.prompts_per_step=8",
    "train.samples_per_prompt=4",
    "train.mini_batch_prompts=4",
    "train.max_new_tokens=40",
    "train.steps=2",
)


@dataclass(frozen=True)
class SelftestOutcome:
    """passed: None where something is not installed. detail: seconds, or what went wrong."""

    passed: bool | None
    detail: str


def pairs() -> list[tuple[str, str]]:
    """Sampler and engine of each test: the embedded ones, then every other beside one of them. Servers are left out."""
    sampler, engine = SamplerConfig().kind, EngineConfig().kind
    samplers = [kind for kind in sampler_kinds() if not sampler_backend(kind).remote]
    every = [(sampler, engine), *((sampler, kind) for kind in engine_kinds()), *((kind, engine) for kind in samplers)]
    return list(dict.fromkeys(every))


def selftest(sampler: str, engine: str) -> SelftestOutcome:
    """Train one of two steps, stop as a kill would, go on to the end; each part a process of its own."""
    needed = {sampler: sampler_backend(sampler).packages, engine: engine_backend(engine).packages}
    missing = [kind for kind, packages in needed.items() if not installed(packages)]
    if missing:
        return SelftestOutcome(None, f"{', '.join(missing)} not installed")
    started = time.monotonic()
    own_weights = not sampler_backend(sampler).shares_weights
    with tempfile.TemporaryDirectory() as store:
        words = [*TINY, f"sampler={sampler}", f"engine={engine}", f"store={store}"]
        words += ["model.dtype=bfloat16"] if own_weights else []
        for part, stop, expected in (("first step", 1, 9), ("resume", 0, 0)):
            command = interpreter.command("-m", __name__, str(stop), *words)
            ended = subprocess.run(
                command, env=interpreter.environment(os.environ), capture_output=True, text=True, check=False
            )
            if ended.returncode != expected:
                why = what_failed(ended.stderr) or f"exit code {ended.returncode}"
                return SelftestOutcome(False, f"{part}: {why}")
        if not list(Path(store).glob("*/checkpoints/step_000002/model.safetensors")):
            return SelftestOutcome(False, "no checkpoint at the end")
        if own_weights and not list(Path(store).glob("*/eval/*/result.json")):
            return SelftestOutcome(False, "no result of measuring")
    summary, seconds = "sampled, updated, synced, saved and resumed", f"in {time.monotonic() - started:.0f} s"
    if not own_weights:
        return SelftestOutcome(True, f"{summary} {seconds}")
    import torch

    awake = "" if torch.cuda.is_available() else "; it never slept, which takes a GPU"
    return SelftestOutcome(True, f"{summary}, and measured, in bfloat16, {seconds}{awake}")


def _train(stop: int, words: list[str]) -> None:
    """In a process of its own: end without a word after step `stop`."""
    from tepo.config.compose import compose
    from tepo.training.loop import train
    from tepo.training.run import Run

    run = Run(compose(words))
    train(run, lambda step, row: os._exit(9) if step == stop else None)
    if not run.sampler.shares_weights:
        in_child(measure, Request.of(run, trained=True, limit=4), ("add3",))


def what_failed(text: str) -> str:
    """The sentence of the error that ends a traceback;
    where and what to do, which our errors add below it, left out."""
    lines = [re.sub(r"^\[rank\d+\]: ", "", line) for line in text.splitlines()]
    return next(
        (line.strip() for line in reversed(lines) if line.strip() and not line.startswith(("in: ", "try: "))), ""
    )


if __name__ == "__main__":
    _train(int(sys.argv[1]), sys.argv[2:])
