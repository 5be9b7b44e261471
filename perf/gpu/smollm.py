"""Part smollm: SmolLM2-135M-Instruct trained for real, `tepo train scale=single_gpu` on word problems that are made on
the spot, after a warm start of a few worked ones.

GRPO/DAPO runs by itself, for its times. Then TEPO, which is killed on its way and goes on, runs beside GRPO/DAPO on
rewards that are chance (data.flip_rewards=0.5): what that one gains is no learning. `python -m perf.gpu smollm --model
DIR` names the folder of the model; without it the part is not run. The runs stay in DIR-runs: what is finished there is
not trained again, and what is not goes on. `--small` takes a random model and leaves nothing.
"""

import json
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from perf.gpu import worked_problems
from perf.gpu.models import make_policy
from perf.gpu.record import Figure, NotRun, named
from perf.gpu.runs import finish, kill_half_way, need, rows, start
from tepo.common import interpreter
from tepo.sampling.gap import default_bound
from tepo.store.run_folder import RunFolder
from tepo.training.resources.memory import GIB, TAKEN

MODEL = "TEPO_GPU_MODEL"  # the model's folder, set by --model
WARM, STEPS, SAVED = 40, 40, 10  # steps of the warm start, of a run, and between its checkpoints
_RUN = ["train.max_new_tokens=64", "train.max_prompt_tokens=160", "train.learning_rate=1e-5", "train.max_rounds=2"]
_RUN += ["sampler=torch", "engine=torch", "model.dtype=bfloat16", "sampler.max_rows=512", "grader.workers=4"]
_SMALL = ["train.prompts_per_step=8", "train.samples_per_prompt=4", "train.mini_batch_prompts=4"]
_SMALL += ["train.max_new_tokens=24", "train.max_prompt_tokens=400", "engine.micro_batch_tokens=2048"]
_TEPO, _CHANCE = ["objective=tepo", "objective.beta=1"], ["objective=grpo_dapo", "data.flip_rewards=0.5"]
_SECTIONS = ("gen", "reward", "old_log_prob", "adv", "update_actor", "sync")


def smollm(device: str, small: bool) -> Iterator[Figure]:
    """The warm start, then the runs one after the other, the figures of each as soon as it has ended."""
    if not small and not os.environ.get(MODEL):
        raise NotRun("needs --model DIR, a folder with SmolLM2-135M-Instruct")
    need("pyarrow", "scipy")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) if small else Path(os.environ[MODEL] + "-runs").absolute()
        folder.mkdir(exist_ok=True)
        if not (folder / "base/config.json").exists():
            begun, losses = time.monotonic(), warm_start(folder, device, small)
            yield Figure("warm start: loss of the last batch, to the first", "nats", losses[-1], losses[0])
            yield Figure("warm start", "s", time.monotonic() - begun, note=f"{len(losses)} steps")
        steps = 2 if small else STEPS
        made = worked_problems.write(folder, 300 if small else 4000, 8 if small else 200, small)
        os.environ["TEPO_PATH"] = str(folder)
        words = ["scale=single_gpu", f"model={folder / 'base'}", *(f"{key}={value}" for key, value in made.items())]
        words += [*_RUN, *(_SMALL if small else ()), f"train.steps={steps}", f"engine.device={device}"]
        words += [f"train.checkpoint_every={1 if small else SAVED}"]
        store = folder / "untrained"
        output("tepo_cli", "eval", "--model", shlex.join(["base", *words, f"store={store}"]), "--quiet")
        before = accuracies(store)
        for benchmark, share in before.items():
            yield Figure(f"warm start: right, {benchmark}", "share", share)
        store, first = folder / "grpo", [*words, "objective=grpo_dapo"]
        finish(start([*first, "--evaluate"], store))
        yield from named("GRPO/DAPO", [*learned(store, before, small), *times(store, planned(first, device))])
        beside = start([*words, *_CHANCE, "--evaluate"], folder / "chance")
        store = folder / "tepo"
        done = kill_half_way([*words, *_TEPO], store, steps)
        finish(start([*words, *_TEPO, "--evaluate"], store))
        yield Figure("TEPO: steps before the kill", "steps", done, steps)
        yield Figure("TEPO: steps, killed and resumed", "steps", len(rows(store)), steps, ">=")
        yield from named("TEPO", learned(store, before, small))
        finish(beside)
        yield from named("rewards by chance", learned(folder / "chance", before, True))


def warm_start(folder: Path, device: str, small: bool) -> list[float]:
    """Put the policy after its warm start into `base`, in a process of its own. Returns its losses."""
    if small:
        (folder / "random").mkdir()
        make_policy(folder / "random", "small", device)
    source = folder / "random/model" if small else Path(os.environ[MODEL]).absolute()
    words = [str(source), str(folder / "base"), device, "2" if small else str(WARM), *(["few"] if small else [])]
    return json.loads(output("perf.gpu.worked_problems", *words).splitlines()[-1])


def output(*words: str) -> str:
    """Output of `python -m WORDS`. Raises RuntimeError with its last words where it fails."""
    command, environment = interpreter.command("-m", *words), interpreter.environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {' '.join(done.stderr.split())[-300:]}")
    return done.stdout


def accuracies(store: Path) -> dict[str, float]:
    """Share of right responses by benchmark, of the only run in a store."""
    found = sorted(store.glob("*/eval/*/result.json"))
    return {path.parent.name: json.loads(path.read_text())["accuracy"] for path in found}


def learned(store: Path, before: dict[str, float], free: bool) -> Iterator[Figure]:
    """Reward, accuracy and entropy at both ends of a run. free: it need not have gained."""
    found = rows(store)
    ending = next(RunFolder(path.parent).ending() for path in store.glob("*/manifest.json"))
    if not found:
        raise RuntimeError(f"{store.name}: {ending.why if ending else 'no step'}")
    few = max(1, len(found) // 8)
    first, last = (fmean(row["critic/score/mean"] for row in part) for part in (found[:few], found[-few:]))
    yield Figure(f"reward of the last {few} steps, to the first", "share", last, first, "" if free else ">=")
    curve = " ".join(f"{100 * row['critic/score/mean']:.0f}" for row in found)
    yield Figure("steps", "steps", len(found), note=f"reward by step, %: {curve}")
    if ending:
        yield Figure("ended before its last step", "step", ending.step, note=ending.why)
    for benchmark, share in accuracies(store).items():
        yield Figure(f"right, {benchmark}, to the warm start", "share", share, before[benchmark])
    for key, unit in (("actor/entropy", "nats"), ("response_length/mean", "tokens"), ("rollout/groups_kept", "")):
        yield Figure(f"{key}, last step to first", unit, found[-1].get(key, 0.0), found[0].get(key, 0.0))
    gap = max(row["training/rollout_logprobs_diff_mean"] for row in found)
    yield Figure("gap of sampler and trainer, at most", "nats", gap, default_bound("bfloat16"), "<=")


def times(store: Path, plan: dict[str, float]) -> Iterator[Figure]:
    """Seconds of the parts of a step, without the first, and on a GPU memory to the plan."""
    first, *found = rows(store)

    def mean(key: str) -> float:
        return fmean(row.get(key, 0.0) for row in found)

    step = mean("timing_s/step")
    yield Figure("a step", "s", step, note=f"the first {first['timing_s/step']:.1f} s")
    for section in _SECTIONS:
        yield Figure(f"{section}, of a step", "s", mean(f"timing_s/{section}"), step)
    yield Figure("sampled", "tokens/s", mean("perf/throughput_gen"))
    yield Figure("updates", "tokens/s", mean("perf/throughput_update_actor"))
    if "perf/mfu/actor" in first:
        yield Figure("MFU of the updates", "share", mean("perf/mfu/actor"))
    if most := found[-1].get("perf/max_memory_allocated_gb"):
        yield Figure("peak that torch allocated, to the plan", "GiB", most, plan["allocated"], "<=")
        taken = max(row.get(f"{TAKEN}update_actor", 0.0) for row in found)
        yield Figure("taken in update_actor, to the plan", "GiB", taken, plan["updating"])


def planned(words: list[str], device: str) -> dict[str, float]:
    """GiB of the run as `tepo plan` counts them: of torch at its peak, and of the updates with all that CUDA takes."""
    import torch
    from transformers import AutoConfig

    from tepo.policy.model.shapes import Shape
    from tepo.training.resources.memory import Gpus, memory
    from tepo_cli.cli_options import compose_run

    config = compose_run(words, None)
    size = torch.cuda.get_device_properties(0).total_memory if device == "cuda" else 0
    found = memory(config, Shape.of_config(AutoConfig.from_pretrained(config.model.path)), Gpus(bytes=size))
    return {"allocated": (found.peak - found.context) / GIB, "updating": found.updating / GIB}
