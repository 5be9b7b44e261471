"""Commands in a process of their own, studies, and the rows of a run; part resume: one run to its end, and one that is
killed (`kill -9`) and goes on; part deepspeed: the same steps by either engine.

On a CPU both must end with the same bits. On a GPU the docs promise that up to the order in which its kernels add, so
there the distance is only reported, and both must finish.
"""

import importlib.util
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from perf.gpu.record import Figure
from tepo.common import interpreter
from tepo.launch.forkserver import on_gpus

_SMALL = ("train.prompts_per_step=8", "train.samples_per_prompt=4", "train.mini_batch_prompts=4")
_RUN = ("train.max_new_tokens=40", "model.dtype=bfloat16", "sampler=torch")
_APART = {"actor/pg_loss": 0.02, "actor/grad_norm": 0.05}  # of the first step, relative bounds


def start(*words: str, ranks: int = 1) -> "subprocess.Popen[str]":
    """`tepo WORDS`, by torchrun on several ranks."""
    command, environment = interpreter.command("-m", "tepo_cli", *words), interpreter.environment()
    command = on_gpus(command, ranks)
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, text=True)


def study(folder: Path, words: Sequence[str], rows: Sequence[str | None], store: Path, gpus: int) -> None:
    """Train and measure a policy once for each row, an objective or None for the untrained one, as a study does: each
    in a process of its own, or as many ranks as GPUs. words: the command line of `tepo train`. Raises RuntimeError with
    what a failed run said."""
    need("pandas", "pyarrow", "scipy")
    given = dict(word.split("=", 1) for word in words)
    scale, model, data = (given.pop(key, None) for key in ("scale", "model", "data"))
    listed = [{"label": row, "objective": row} if row else {"label": "base", "base": True} for row in rows]
    said = {"title": "A GPU", "rows": listed, "scales": {scale: {"models": [model], "seeds": [0]}}}
    (folder / "experiments").mkdir(exist_ok=True)
    (folder / "experiments/gpu.yaml").write_text(json.dumps(said))
    os.environ["TEPO_PATH"] = str(folder)
    settings = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    where = ["--scale", str(scale), "--store", str(store), "--gpus", str(gpus), *(["--data", data] if data else [])]
    finish(start("ablate", "gpu", *where, *settings))


def finish(process: "subprocess.Popen[str]") -> None:
    """Wait for the end. Raises RuntimeError with what a failed run said."""
    _, errors = process.communicate()
    if process.returncode:
        said = " ".join(errors.split())
        place = said.find("error: ")  # torchrun says more after it
        raise RuntimeError(f"tepo ended with {process.returncode}: {said[place:][:300] if place >= 0 else said[-300:]}")


def rows(store: Path) -> list[dict]:
    """The metrics of the only run in a store, so far."""
    found = list(store.glob("*/metrics.jsonl"))  # an untrained policy has none
    return [json.loads(line) for line in found[0].read_text().splitlines() if line.endswith("}")] if found else []


def need(*packages: str) -> None:
    """Raises ImportError for a package that is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"{package} is not installed")


def resume(device: str, small: bool) -> Iterator[Figure]:
    """The laptop policy in bfloat16: both runs side by side, then their distance."""
    from safetensors.torch import load_file

    from tepo.training.metrics.metrics_log import VOLATILE

    steps, exact = 3 if small else 8, device == "cpu"
    words = ["train", "--quiet", *_RUN, *(_SMALL if small else ()), f"train.steps={steps}", f"engine.device={device}"]
    with tempfile.TemporaryDirectory() as name:
        stores = Path(name) / "whole", Path(name) / "resumed"
        beside, killed = (start(*words, f"store={store}") for store in stores)
        while len(rows(stores[1])) < steps // 2 and killed.poll() is None:
            time.sleep(0.02)
        done = len(rows(stores[1]))
        killed.kill()
        killed.communicate()
        finish(start(*words, f"store={stores[1]}"))
        finish(beside)
        whole, resumed = (rows(store) for store in stores)
        yield Figure("steps before the kill", "steps", done, steps)
        yield Figure("steps of the resumed run", "steps", len(resumed), steps, ">=")
        lasting = [
            [{k: v for k, v in row.items() if not k.startswith(VOLATILE)} for row in r] for r in (whole, resumed)
        ]
        same = sum(a == b for a, b in zip(*lasting, strict=True))
        yield Figure("steps with equal metrics, killed or not", "steps", same, steps, ">=" if exact else "")
        one, other = (load_file(max(store.glob("*/checkpoints/step_*/model.safetensors"))) for store in stores)
        most = max(float((one[key].float() - other[key].float()).abs().max()) for key in one)
        yield Figure("largest difference of a weight", "", most, 0.0, "<=" if exact else "")
    spent = sum(row["timing_s/step"] for row in whole[1:])
    tokens = sum(row["perf/sampled_tokens"] for row in whole[1:])
    yield Figure("a step", "s", spent / (steps - 1), note=f"{tokens / spent:.0f} sampled tokens/s")


def deepspeed(device: str, small: bool) -> Iterator[Figure]:
    """The laptop policy in bfloat16 on one rank (NCCL on a GPU): the first step by ZeRO 1 to 3 and with the optimiser
    in main memory, against the embedded engine's, and a second. Each run draws the same responses for its first."""
    need("deepspeed")
    words = ["train", "--quiet", *_RUN, *(_SMALL if small else ()), "train.steps=2", f"engine.device={device}"]
    engines = {"embedded": ["engine=torch"]}
    engines |= {f"ZeRO {stage}": ["engine=deepspeed", f"engine.zero_stage={stage}"] for stage in (1, 2, 3)}
    right: dict = {}
    engines["offloaded"] = [*engines["ZeRO 2"], "engine.offload=true"]
    with tempfile.TemporaryDirectory() as name:
        for engine, more in engines.items():
            store = Path(name) / engine
            finish(start(*words, *more, f"store={store}"))
            found = rows(store)
            right = right or found[0]
            yield Figure(f"{engine}: steps", "steps", len(found), 2, ">=")
            for key, bound in _APART.items():
                apart = abs(found[0][key] - right[key]) / max(abs(right[key]), 1e-3)
                yield Figure(f"{engine}: {key} apart from the embedded engine's", "relative", apart, bound, "<=")
            yield Figure(f"{engine}: a step", "s", found[-1]["timing_s/step"])
