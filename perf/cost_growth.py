"""Growth of an RL step's cost: response length 64 -> 1,024 and group count 64 -> 512, beside a model of attention and
linear cost.

    OMP_NUM_THREADS=1 python -m perf.cost_growth [--turns 3] [--samples 2] [--short]

The laptop policy without its stop token, so that each of `samples` responses a prompt has exactly L tokens; G groups;
a step is the sampling and four mini-batches, once each, of the embedded engine, CPU seconds of one thread. With
N = G x samples x L tokens the model is

    sampling: a L + b N + c N (L / 2 + P)        decode steps, tokens, keys that tokens look at (P: prompt tokens)
    updates:  d + e N + f N (L / 2 + P)

with coefficients that cannot be negative, fitted to the cells of both series (least squares of relative errors). What
is tested: that nothing grows faster than tokens and the keys they look at. Cells take turns; medians over turns.
Target: no step further than 15% from the model.
"""

import argparse
import time
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from tepo.config.compose import compose
from tepo.objectives import load_objective
from tepo.policy.model.allocator import keep_freed_memory
from tepo.policy.model.load_policy import load_policy
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.gap import GapAlarm
from tepo.sampling.sampler import SamplingParams
from tepo.training.engine.torch_engine import TorchEngine
from tepo.training.loop import update
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.prompt_stream import PromptStream
from tepo.training.rollout_batch import FlatRollout, Group
from tepo.training.update import Updater

LENGTHS, GROUPS = (64, 128, 256, 512, 1024), (64, 128, 256, 512)
BASE_LENGTH, BASE_GROUPS = 64, 64
Cell = tuple[int, int]  # groups, response length


def cells(short: bool) -> list[Cell]:
    """Both series; they share their first cell."""
    lengths, groups = (LENGTHS[:3], GROUPS[:2]) if short else (LENGTHS, GROUPS)
    return [(BASE_GROUPS, length) for length in lengths] + [(count, BASE_LENGTH) for count in groups[1:]]


def stepper(cell: Cell, samples: int) -> Any:
    """A call that makes one step of a cell: CPU seconds of sampling and of the updates, prompt tokens."""
    count, length = cell
    sizes = [
        f"train.prompts_per_step={count}",
        f"train.samples_per_prompt={samples}",
        f"train.max_new_tokens={length}",
        f"train.mini_batch_prompts={count // 4}",
    ]
    config = compose(["objective=grpo_dapo", "train.epochs=1", "train.learning_rate=1e-12", *sizes])
    policy = load_policy(config.model.path)
    policy.model.config.max_position_embeddings = 4096  # rotary: nothing else depends on it
    sampler = TorchSampler(policy.model, SimpleNamespace(eos_token_id=None))
    sampler.stop = []
    alarm = GapAlarm(float("inf"), temperature=1.0, dtypes=("float32", "float32"))
    updater = Updater(config, load_objective("grpo_dapo"), TorchEngine(policy.model, config.train), alarm)
    prompts = PromptStream(config, policy.tokenizer).take(0, count)
    rewards = (np.arange(samples) % 2).astype(np.float32)

    def step(turn: int) -> tuple[float, float, float]:
        begin = time.process_time()
        drawn = sampler.sample(
            [prompt.tokens for prompt in prompts],
            [turn * count + i for i in range(count)],
            SamplingParams(n=samples, temperature=1.0, max_new_tokens=length),
        )
        sampled = time.process_time()
        rollout = FlatRollout(
            [Group(prompt, responses, rewards) for prompt, responses in zip(prompts, drawn, strict=True)],
            torch.device("cpu"),
        )
        assert int(rollout.lengths.sum()) == count * samples * length
        updater.passes.compute_old_logprobs(rollout)
        update(updater, rollout, 1, StepMetrics())
        return (
            sampled - begin,
            time.process_time() - sampled,
            float(np.mean([len(prompt.tokens) for prompt in prompts])),
        )

    return step


def fit(features: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The model's seconds in each cell: non-negative least squares of relative errors. features [cells, terms]."""
    coefficients, _ = nnls(features / seconds[:, None], np.ones(len(seconds)))
    return features @ coefficients


def measure(turns: int = 3, samples: int = 2, short: bool = False) -> dict[str, Any]:
    """Seconds of every cell, the model's beside them, and the largest deviation of a whole step."""
    torch.set_num_threads(1)
    keep_freed_memory()
    steps = {cell: stepper(cell, samples) for cell in cells(short)}
    taken: dict[Cell, list[tuple[float, float, float]]] = {cell: [] for cell in steps}
    for turn in range(turns + 1):
        for cell, step in steps.items():
            if turn or cell == (
                BASE_GROUPS,
                BASE_LENGTH,
            ):  # one cell warms up libraries; large buffers are part of a step's cost
                taken[cell].append(step(turn))
    taken[BASE_GROUPS, BASE_LENGTH].pop(0)
    sampling, updates, prompt = (
        np.array([median(row[part] for row in taken[cell]) for cell in steps]) for part in range(3)
    )
    groups, lengths = np.array(list(steps), dtype=float).T
    tokens = groups * samples * lengths
    keys = tokens * (lengths / 2 + prompt)
    model = fit(np.stack([lengths, tokens, keys], 1), sampling) + fit(
        np.stack([np.ones_like(tokens), tokens, keys], 1), updates
    )
    total = sampling + updates
    rows = [
        {
            "groups": int(g),
            "length": int(n),
            "tokens": int(t),
            "sampling_s": s,
            "updates_s": u,
            "step_s": s + u,
            "model_s": m,
            "deviation": (s + u) / m - 1,
        }
        for g, n, t, s, u, m in zip(
            groups, lengths, tokens, sampling.tolist(), updates.tolist(), model.tolist(), strict=True
        )
    ]
    return {
        "name": "cost growth of an RL step",
        "samples": samples,
        "rows": rows,
        "worst": float(np.abs(total / model - 1).max()),
        "target": "<= 0.15",
    }


def show(result: dict[str, Any]) -> None:
    """One table."""
    print(
        f"{'groups':>7} {'length':>7} {'tokens':>9} {'sampling s':>11} {'updates s':>10} {'step s':>8} {'model s':>8} "
        f"{'deviation':>10}"
    )
    for row in result["rows"]:
        figures = (
            f"{row['sampling_s']:11.2f} {row['updates_s']:10.2f} {row['step_s']:8.2f} {row['model_s']:8.2f} "
            f"{100 * row['deviation']:+9.1f}%"
        )
        print(f"{row['groups']:7} {row['length']:7} {row['tokens']:9,} {figures}")
    print(f"furthest from the model: {100 * result['worst']:.1f}% (target 15%)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args()
    show(measure(given.turns, given.samples, given.short))
