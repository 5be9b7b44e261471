"""First and second bottleneck of a simulated step at 8 to 128 GPUs.

    python -m perf.simulate_sizes [--write | --stored]

Qwen2.5-7B on H100, responses as in `perf.simulate_step`. Once with the paper's 64 prompts a step on every size, once
with 8 prompts a GPU: 8,192 trained sequences on 128. Simulated: rollout, log-probs and updates. Measured on one core of
this machine, on real groups: what each rank does in Python (groups pickled and read, a rollout made flat, sequences
dealt and packed). Worked out: a rank's share of a checkpoint copied to main memory. `--write` keeps the result in
perf/results/simulation.json.
"""

import argparse
import json
import pickle
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from perf.simulate_step import MODELS, RESULT, SimulatedRun
from tepo.config.run_config import RunConfig, chosen
from tepo.planning.gpus import LINK
from tepo.planning.simulator import updates
from tepo.planning.simulator.cards import SYNC, Training
from tepo.planning.simulator.schedules import by_queue
from tepo.planning.simulator.workload import PROMPT, Lognormal, Workload
from tepo.problems.problem import Problem
from tepo.sampling.sampler import Response
from tepo.training.resources.gpu_cards import H100
from tepo.training.rollout.group_stats import GroupStats
from tepo.training.rollout_batch import FlatRollout, Group, Prompt, even_chunks

SIZES = (8, 16, 32, 64, 128)
GROUPS = 256
STATES = 14  # bytes of a weight in a checkpoint: bf16, the float32 master and both moments
PARTS = {
    "longest": "the longest response",
    "decoding": "other responses beside it",
    "computing": "operations of log-probs and updates",
    "imbalance": "ranks that wait in updates",
    "exchange": "gradients and weights between GPUs",
    "sync": "weights to the sampler",
    "python": "Python on the host",
    "checkpoint": "copies for checkpoints",
}


@dataclass(frozen=True)
class Size:
    """Seconds of a step by part, which add up to it. sequences: that are trained."""

    gpus: int
    sequences: int
    longest: float
    decoding: float
    computing: float
    imbalance: float
    exchange: float
    sync: float
    python: float
    checkpoint: float

    @property
    def parts(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in PARTS}

    @property
    def bottlenecks(self) -> list[str]:
        """The parts by their seconds, the largest first."""
        return sorted(PARTS, key=lambda name: -self.parts[name])


def of_size(gpus: int, workload: Workload, overrides: Sequence[str] = ()) -> Size:
    """The mean over as many steps of the 7B as train `GROUPS` groups, at least one."""
    prompts = SimulatedRun(MODELS[0], gpus, workload, tuple(overrides)).setup(0.0).config.train.prompts_per_step
    steps = [_step(gpus, workload, overrides, number * 4 * prompts) for number in range(max(1, GROUPS // prompts))]
    parts = {name: sum(getattr(step, name) for step in steps) / len(steps) for name in PARTS}
    return Size(gpus, steps[0].sequences, **parts)


def _step(gpus: int, workload: Workload, overrides: Sequence[str], start: int) -> Size:
    case = SimulatedRun(MODELS[0], gpus, workload, tuple(overrides))
    setup, training = case.setup(case.model.memory), Training(H100, case.model.shape, gpus)
    config = setup.config
    rollout = by_queue(setup, start, 2 * config.train.prompts_per_step)
    done = updates.ours(training, config, rollout.lengths)
    longest = setup.decoding.seconds(max(map(max, rollout.lengths)), 1, PROMPT)
    exchange = config.train.epochs * len(_runs(config, rollout.lengths)) * training.optimiser_step()
    passes = done.updates - exchange
    waiting = passes * (1 - 1 / done.imbalance)
    return Size(
        gpus,
        sum(map(len, rollout.lengths)),
        longest,
        rollout.seconds - longest,
        done.logprobs + passes - waiting,
        waiting,
        exchange,
        SYNC,
        python_seconds(config, rollout.lengths, gpus),
        STATES * case.model.shape.parameters / gpus / LINK / chosen(config.train.checkpoint_every),
    )


def python_seconds(config: RunConfig, lengths: Sequence[Sequence[int]], ranks: int) -> float:
    """CPU seconds of one rank for a step's groups: its own are pickled, all are read, made flat, dealt and, its part,
    packed, for the old log-probs and every update."""
    groups = [_group(number, each) for number, each in enumerate(lengths)]
    rows = [(group.prompt.number, GroupStats.of(group), group) for group in groups]
    shares = [pickle.dumps(rows[rank::ranks]) for rank in range(ranks)]
    begin = time.thread_time()
    pickle.dumps(rows[::ranks])
    read = sorted((row for share in shares for row in pickle.loads(share)), key=lambda row: row[0])
    rollout = FlatRollout([group for _, _, group in read], torch.device("cpu"))
    every = [range(rollout.group_count)] + config.train.epochs * _runs(config, lengths)
    for run in every:
        dealt = rollout.deal(rollout.sequences_of(list(run)), config.engine.micro_batch_tokens, ranks)
        for part in dealt[0]:
            rollout.pack(part or [rollout.shortest])
    return time.thread_time() - begin


def _runs(config: RunConfig, lengths: Sequence[Sequence[int]]) -> list[list[int]]:
    return even_chunks(len(lengths), config.train.mini_batches)


def _group(number: int, lengths: Sequence[int]) -> Group:
    """With memory of its own, unlike a simulated one."""
    made = [(np.zeros(length, np.int32), np.zeros(length, np.float32)) for length in lengths]
    responses = [Response(tokens, logprobs, None, True) for tokens, logprobs in made]
    prompt = Prompt(number, Problem(str(number), "", "1"), [0] * PROMPT)
    return Group(prompt, responses, np.zeros(len(lengths), np.float32))


def measure(workload: Workload) -> dict[str, Any]:
    """All sizes, with the paper's batch and with one that grows with the GPUs."""
    grown = {gpus: [f"train.prompts_per_step={8 * gpus}", f"train.mini_batch_prompts={2 * gpus}"] for gpus in SIZES}
    return {
        "64 prompts": [asdict(of_size(gpus, workload)) for gpus in SIZES],
        "8 prompts a GPU": [asdict(of_size(gpus, workload, grown[gpus])) for gpus in SIZES],
    }


def show(found: dict[str, Any]) -> None:
    """A table for each batch, as Markdown."""
    for batch, rows in found.items():
        print(f"\n| {batch}: GPUs | sequences | step | {' | '.join(PARTS.values())} | first, then |")
        print("|" + "---|" * (len(PARTS) + 4))
        for size in (Size(**row) for row in rows):
            seconds = " | ".join(f"{value:.1f}" for value in size.parts.values())
            first, second, *_ = (PARTS[name] for name in size.bottlenecks)
            total = sum(size.parts.values())
            print(f"| {size.gpus} | {size.sequences:,} | {total:.1f} | {seconds} | {first}; {second} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="keep the result in perf/results/simulation.json")
    what.add_argument("--stored", action="store_true", help="print what is kept")
    given = parser.parse_args()
    kept = json.loads(RESULT.read_text())
    found = kept["scaling"] if given.stored else measure(Lognormal(2000, 8192))
    if given.write:
        RESULT.write_text(json.dumps(kept | {"scaling": found}, indent=1) + "\n")
    show(found)


if __name__ == "__main__":
    main()
