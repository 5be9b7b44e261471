"""A self-test of each installed engine:
sample, update, sync, checkpoint, kill, resume, on the shipped laptop policy."""

import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tepo.backends import installed
from tepo.config.schema import EngineConfig, SamplerConfig
from tepo.sampling.samplers import sampler_backend, sampler_kinds
from tepo.training.engines import engine_backend, engine_kinds

TINY = (
    "train.prompts_per_step=8",
    "train.samples_per_prompt=4",
    "train.mini_batch_prompts=4",
    "train.max_new_tokens=40",
    "train.steps=2",
)


@dataclass(frozen=True)
class Outcome:
    """passed: None where something is not installed. detail: seconds, or what went wrong."""

    passed: bool | None
    detail: str


def pairs() -> list[tuple[str, str]]:
    """Sampler and engine of each test: the embedded ones, then every other beside one of them. Servers are left out."""
    sampler, engine = SamplerConfig().kind, EngineConfig().kind
    samplers = [kind for kind in sampler_kinds() if not sampler_backend(kind).remote]
    every = [(sampler, engine), *((sampler, kind) for kind in engine_kinds()), *((kind, engine) for kind in samplers)]
    return list(dict.fromkeys(every))


def selftest(sampler: str, engine: str) -> Outcome:
    """Train one of two steps, stop as a kill would, go on to the end; each part a process of its own."""
    needed = {sampler: sampler_backend(sampler).packages, engine: engine_backend(engine).packages}
    missing = [kind for kind, packages in needed.items() if not installed(packages)]
    if missing:
        return Outcome(None, f"{', '.join(missing)} not installed")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as store:
        code = (
            "import os, sys\nfrom tepo.config.compose import compose\nfrom tepo.training.loop import train\n"
            "train(compose(sys.argv[2:]), lambda step, row: os._exit(9) if step == int(sys.argv[1]) else None)"
        )
        words = [*TINY, f"sampler={sampler}", f"engine={engine}", f"store={store}"]
        for stop, expected in ((1, 9), (0, 0)):
            done = subprocess.run(
                [sys.executable, "-c", code, str(stop), *words], capture_output=True, text=True, check=False
            )
            if done.returncode != expected:
                return Outcome(
                    False,
                    f"{'first step' if stop else 'resume'}: "
                    f"{what_failed(done.stderr or done.stdout) or f'exit code {done.returncode}'}",
                )
        if not list(Path(store).glob("*/checkpoints/step_000002/model.safetensors")):
            return Outcome(False, "no checkpoint at the end")
    return Outcome(True, f"sampled, updated, synced, saved and resumed in {time.monotonic() - started:.0f} s")


def what_failed(text: str) -> str:
    """The sentence of the error that ends a traceback;
    where and what to do, which our errors add below it, left out."""
    lines = [re.sub(r"^\[rank\d+\]: ", "", line) for line in text.splitlines()]
    return next(
        (line.strip() for line in reversed(lines) if line.strip() and not line.startswith(("in: ", "try: "))), ""
    )
