"""Part small_lm: scale `small_lm` on a GPU, SmolLM2-135M after its warm start trained by GRPO/DAPO on word problems.

A study of two rows in a temporary store: the base, and a run. Without the model in the cache it is not run. `--small`
trains a random model for two steps.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch

from perf.gpu.models import make_policy, planned
from perf.gpu.record import Figure, NotRun
from perf.gpu.runs import rows, study
from tepo.policy.model.model_location import cached_folder
from tepo.sampling.gap import default_bound
from tepo.training.resources.gpu_cards import GIB

_MODEL = "smollm2-135m-words"  # of the scale
_FIX = f"`tepo model fetch smollm2-135m`, then `tepo model warmstart {_MODEL}`; TEPO_MODELS names the folder of models"
_SMALL = [
    "model.dtype=bfloat16",
    "train.steps=2",
    "train.prompts_per_step=8",
    "train.max_new_tokens=24",
    "train.max_prompt_tokens=400",
]
_SECTIONS = ("gen", "reward", "old_log_prob", "adv", "update_actor", "sync")


def small_lm(device: str, small: bool) -> Iterator[Figure]:
    """The accuracy of the base, then the run."""
    if not small and not cached_folder(_MODEL).is_dir():
        raise NotRun(f"needs the model {_MODEL}: {_FIX}")
    with tempfile.TemporaryDirectory() as name:
        folder, store = Path(name), Path(name) / "runs"
        words = ["scale=small_lm", f"model={_MODEL}", f"engine.device={device}"]
        if small:
            made = make_policy(folder, "small", device)
            words = [words[0], words[2], *(f"{key}={value}" for key, value in made.items()), *_SMALL]
        study(folder, words, [None, "grpo_dapo"], store, int(device == "cuda"))
        before, after = (accuracies(store, trained) for trained in (False, True))
        each = ", ".join(f"{name} {after[name]:.1%} from {share:.1%}" for name, share in before.items())
        must = "" if small else ">="
        yield Figure("right, to the base", "share", fmean(after.values()), fmean(before.values()), must, each)
        first, *others = rows(store)
        early, late = (fmean(row["critic/score/mean"] for row in part) for part in (others[:5], others[-5:]))
        yield Figure("reward of the last five steps, to the first", "share", late, early, must)
        gap = max(row["training/rollout_logprobs_diff_mean"] for row in others)
        yield Figure("gap of sampler and trainer, at most", "nats", gap, default_bound("bfloat16"), "<=")
        means = {key: fmean(row.get(key, 0.0) for row in others) for key in others[-1]}
        step = means["timing_s/step"]
        yield Figure("a step", "s", step, note=f"the first {first['timing_s/step']:.1f} s")
        for section in _SECTIONS:
            yield Figure(f"{section}, of a step", "s", means.get(f"timing_s/{section}", 0.0), step)
        for what in ("gen", "update_actor"):
            yield Figure(f"{what}: speed", "tokens/s", means[f"perf/throughput_{what}"])
        if most := others[-1].get("perf/max_memory_allocated_gb"):
            plan = planned([*words, "objective=grpo_dapo"], torch.cuda.get_device_properties(0).total_memory)
            yield Figure("peak that torch allocated, to the plan", "GiB", most, (plan.peak - plan.context) / GIB, "<=")


def accuracies(store: Path, trained: bool) -> dict[str, float]:
    """Share of right responses by benchmark, of the policy that was trained in a store or of its base."""
    runs = [folder for folder in store.iterdir() if (folder / "metrics.jsonl").exists() == trained]
    found = sorted(path for run in runs for path in run.glob("eval/*/result.json"))
    return {path.parent.name: json.loads(path.read_text())["accuracy"] for path in found}
