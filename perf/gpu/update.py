"""`loop.update` on four layers of Qwen2.5-7B, responses of 0.5k to 8k tokens, checkpointing; its peak against the
planner.

Twice, each in a process of its own: with torch's allocator as it is, and with expandable segments.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict

from transformers import AutoConfig

from tepo.common import interpreter
from tepo.policy.model.shapes import Shape
from tepo.training.probes import update_probe as probe
from tepo.training.probes.models import SHAPES, Case, run_config
from tepo.training.probes.probe_record import Figure
from tepo.training.resources.memory import GIB, memory

_WAYS = {"as it is": "", "expandable segments": "expandable_segments:True"}  # the small form takes the last alone


def measure(device: str, small: bool) -> Iterator[Figure]:
    """The figures of either way."""
    for name, setting in list(_WAYS.items())[-1:] if small else _WAYS.items():
        environment = interpreter.environment() | ({"PYTORCH_ALLOC_CONF": setting} if setting else {})
        words = interpreter.command("-m", "perf.gpu.update", device, "small" if small else "full")
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        for values in json.loads(done.stdout.splitlines()[-1]):
            yield Figure(**values | {"name": f"{name}: {values['name']}"})


def figures(device: str, case: Case, turns: int) -> Iterator[Figure]:
    """Speed, and on a GPU memory against the plan, which must not be exceeded."""
    found = probe.measure(case, device, turns)
    yield from probe.speed(found)
    plan = planned(case) / GIB
    if device == "cuda":
        yield Figure("peak memory, to the plan", "GiB", found["peak_gib"], plan, "<=")
        yield Figure("reserved by torch, to its peak", "GiB", found["reserved_gib"], found["peak_gib"])
    else:
        yield Figure("planned peak memory", "GiB", plan)


def planned(case: Case) -> float:
    """Bytes of the updates as `tepo plan` counts them, without CUDA's own and fragments: what torch has allocated."""
    kind, values = SHAPES[case.shape]
    found = memory(run_config(case), Shape.of_config(AutoConfig.for_model(kind, **values)))
    return found.updating - found.context - found.fragments


if __name__ == "__main__":
    made = figures(sys.argv[1], probe.SIZES[sys.argv[2]], turns=2 if sys.argv[1] == "cuda" else 1)
    print("\n" + json.dumps([asdict(one) for one in made]))
