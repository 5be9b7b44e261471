"""Part smollm: SmolLM2-135M-Instruct trained for real, `tepo train scale=single_gpu` with GRPO/DAPO on word problems
that are made on the spot, after a warm start of a few worked ones.

`python -m perf.gpu smollm --model DIR` names the folder of the model; without it the part is not run. The run stays in
DIR-runs: what is finished there is not trained again, and what is not goes on. `--small` takes a random model.
"""

import json
import os
import shlex
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from perf.gpu.models import make_policy, planned
from perf.gpu.record import Figure, NotRun
from perf.gpu.runs import finish, need, rows, start
from tepo.policy.model.load_policy import load_tokenizer
from tepo.problems.prompt_format import render_prompt
from tepo.sampling.gap import default_bound
from tepo.training.resources.memory import GIB

MODEL = "TEPO_GPU_MODEL"  # the model's folder, set by --model
WARM, STEPS, BATCH = 40, 40, 16  # steps of the warm start and of the run; problems of a step of the warm start
_RUN = ["train.max_new_tokens=64", "train.max_prompt_tokens=160", "train.learning_rate=1e-5", "train.max_rounds=2"]
_RUN += ["sampler=torch", "engine=torch", "model.dtype=bfloat16", "sampler.max_rows=512", "grader.workers=4"]
_SMALL = ["train.prompts_per_step=8", "train.samples_per_prompt=4", "train.mini_batch_prompts=4"]
_SMALL += ["train.max_new_tokens=24", "train.max_prompt_tokens=400", "engine.micro_batch_tokens=2048"]
_SECTIONS = ("gen", "reward", "old_log_prob", "adv", "update_actor", "sync")
_TEXTS = (  # of problems of two steps; x is the result of the first
    ("{n} has {a} apples, gets {b} more and then loses {d}. How many does {n} have now?", "a + b; x - d"),
    ("{n} has {a} cards and gives {b} to a friend and {d} to another. How many are left?", "a - b; x - d"),
    ("{n} buys {c} bags with {b} eggs each and already had {a}. How many eggs are that?", "c * b; x + a"),
)
_BENCHMARK = """\
title: Word problems with other numbers
dataset: {path: word_problems.jsonl}
count: 200
prompt: boxed
samples: 4
temperature: 1.0
max_new_tokens: 64
"""


def smollm(device: str, small: bool) -> Iterator[Figure]:
    """The warm start, its accuracy, then the run."""
    if not small and not os.environ.get(MODEL):
        raise NotRun("needs --model DIR, a folder with SmolLM2-135M-Instruct")
    need("pyarrow", "scipy")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) if small else Path(os.environ[MODEL] + "-runs").absolute()
        folder.mkdir(exist_ok=True)
        made = make_policy(folder, "small", device) if small else write(folder)
        source = Path(made.pop("model") if small else os.environ[MODEL]).absolute()
        if not (folder / "base/config.json").exists():
            losses = warm_start(source, folder / "base", device, 2 if small else WARM)
            yield Figure("warm start: loss of the last batch, to the first", "nats", losses[-1], losses[0])
        os.environ["TEPO_PATH"] = str(folder)
        words = ["scale=single_gpu", f"model={folder / 'base'}", *(f"{key}={value}" for key, value in made.items())]
        words += [*_RUN, *(_SMALL if small else ()), "objective=grpo_dapo", f"engine.device={device}"]
        words += [f"train.steps={2 if small else STEPS}", "train.checkpoint_every=10"]
        untrained, store = folder / "untrained", folder / "grpo"
        finish(start("eval", "--model", shlex.join(["base", *words, f"store={untrained}"])))
        finish(start("train", *words, f"store={store}", "--evaluate"))
        before, after = (accuracy(one) for one in (untrained, store))
        yield Figure("right, against the warm start", "share", after, before, "" if small else ">=")
        first, *others = rows(store)
        ends = (fmean(row["critic/score/mean"] for row in part) for part in (others[-5:], others[:5]))
        yield Figure("reward of the last five steps, to the first", "share", *ends, "" if small else ">=")
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
            plan = planned(words, torch.cuda.get_device_properties(0).total_memory)
            yield Figure("peak that torch allocated, to the plan", "GiB", most, (plan.peak - plan.context) / GIB, "<=")


def accuracy(store: Path) -> float:
    """Share of right responses of the only evaluation in a store."""
    (path,) = store.glob("*/eval/*/result.json")
    return json.loads(path.read_text())["accuracy"]


def problems(seed: str, held: bool = False) -> Iterator[tuple[str, str, int]]:
    """Problems without end, each with its solution and answer. held: those with numbers that training never has."""
    random = Random(seed)
    while True:
        (text, steps), name = random.choice(_TEXTS), random.choice(("Ada", "Ben", "Emma", "Hugo", "Ines", "Kim"))
        known = {"a": random.randint(40, 90), "b": random.randint(2, 12), "c": random.randint(2, 6)}
        known["d"] = random.randint(2, 12)
        if (sum(known.values()) % 5 == 0) == held:
            solution = ""
            for step in steps.split("; "):
                left, sign, right = step.split()
                one, other = known[left], known[right]
                known["x"] = {"+": one + other, "-": one - other, "*": one * other}[sign]
                solution += f"{one} {sign} {other} = {known['x']}. "
            yield text.format(n=name, **known), f"{solution}\\boxed{{{known['x']}}}", known["x"]


def write(folder: Path) -> dict[str, str]:
    """Fill a folder with train.jsonl and the benchmark. Returns the overrides that name them."""
    (folder / "evals").mkdir(exist_ok=True)
    (folder / "evals/word_problems.yaml").write_text(_BENCHMARK)
    for path, count, held in (("train.jsonl", 4000, False), ("evals/word_problems.jsonl", 200, True)):
        answers: dict[str, int] = {}
        drawn = problems(path, held)
        while len(answers) < count:
            text, _, answers[text] = next(drawn)
        lines = [{"id": str(i), "problem": text, "answer": str(one)} for i, (text, one) in enumerate(answers.items())]
        (folder / path).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"data": str(folder / "train.jsonl"), "data.benchmarks": "[word_problems]"}


def warm_start(source: Path, target: Path, device: str, steps: int) -> list[float]:
    """Show a model `steps` batches of worked problems, and save it in bfloat16. Returns the losses.

    Weights are float32, products bfloat16."""
    from transformers import AutoModelForCausalLM

    tokenizer: Any = load_tokenizer(str(source))
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).to(device)
    ends = model.generation_config.eos_token_id
    end = ends[0] if isinstance(ends, list) else ends
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.0)
    drawn, losses = problems("warm start"), []
    for _ in range(steps):
        ids, labels = [], []
        for text, solution, _ in islice(drawn, BATCH):
            prompt = render_prompt(text, tokenizer, prompt="boxed")
            before, after = tokenizer([prompt, solution], add_special_tokens=False)["input_ids"]
            ids.append(torch.tensor([*before, *after, end]))
            labels.append(torch.tensor([*[-100] * len(before), *after, end]))  # where the solution stands
        padded = (pad_sequence(ids, True, end), pad_sequence(labels, True, -100))
        with torch.autocast(device, dtype=torch.bfloat16):
            given, wanted = (part.to(device) for part in padded)
            loss = model(input_ids=given, labels=wanted, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.to(torch.bfloat16).save_pretrained(target)
    if device == "cuda":
        del model, optimizer, loss
        torch.cuda.empty_cache()  # the run is another process
    tokenizer.save_pretrained(target)
    return losses
