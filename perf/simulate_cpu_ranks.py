"""The simulated rollout against a real one on two ranks: vLLM's CPU build on the laptop model, in CPU seconds.

Two processes under torchrun draw rollouts with the project's `Collector`. Four constants (those of `perf.simulate_cpu`)
are fitted to rollouts that draw each prompt once and end. Judged are rollouts of other sizes that draw more prompts
until enough groups are mixed, and give up what is left over: `Collector` runs again, on engines with a clock, with the
lengths and verdicts that came out. Compared are the CPU seconds of both ranks and those of the rank that had more.
Ranks meet by wall clock: the simulated engines are as slow by it as the real ones were.
Run: OMP_NUM_THREADS=1 python -m perf.simulate_cpu_ranks
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from perf.sampler import LAPTOP
from perf.simulate_cpu import WITHIN, CpuRate, fit
from tepo.common import interpreter
from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.objectives.testing.simulated_ranks import SimulatedRank, on_ranks
from tepo.planning.simulator.clocked_sampler import AtOnce, ClockedRank, ClockedSampler, Engine, Judge, Stream
from tepo.planning.simulator.workload import Drawn
from tepo.policy.model.load_policy import load_policy
from tepo.problems.grader import Grader, GraderOptions
from tepo.sampling.sampler import Job, SamplingParams
from tepo.sampling.stop_tokens import stop_tokens
from tepo.sampling.vllm.vllm_sampler import EngineOptions, EngineQueue, VllmSampler
from tepo.training.distributed import process_group
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.collector import Collector
from tepo.training.rollout.prompt_stream import PromptStream
from tepo.training.rollout_batch import Prompt

RANKS, SIZE, ROWS, TURNS = 2, 4, 64, 5
FITTED, JUDGED = (8, 24, 64), (16, 40)  # prompts of a step


def config_of(prompts: int, rounds: int) -> RunConfig:
    sizes = [f"train.prompts_per_step={prompts}", f"train.mini_batch_prompts={prompts}", f"train.max_rounds={rounds}"]
    return compose([*sizes, f"train.samples_per_prompt={SIZE}", "train.max_new_tokens=64", "sampler=vllm"])


@dataclass
class Listening:
    """A sampler that remembers what this rank drew: part (see `PromptQueue`) -> lengths of its prompt and response."""

    sampler: VllmSampler
    parts: dict[int, tuple[int, int]]

    @property
    def side_by_side(self) -> int | None:
        return self.sampler.side_by_side

    def start(self, params: SamplingParams) -> "Heard":
        return Heard(self.sampler.start(params), self.parts, {})


@dataclass
class Heard:
    """Its queue."""

    queue: EngineQueue
    parts: dict[int, tuple[int, int]]
    prompts: dict[int, int]

    def add(self, jobs: Sequence[Job]) -> None:
        self.prompts |= {job.number: len(job.prompt) for job in jobs}
        self.queue.add(jobs)

    def finished(self, seconds: float | None = None) -> list:
        done = self.queue.finished(seconds)
        self.parts |= {part: (self.prompts[part], len(response.tokens)) for part, (response,) in done}
        return done

    def drop(self, numbers: Collection[int]) -> None:
        self.queue.drop(numbers)

    def abort(self) -> Any:
        return self.queue.abort()


def rank_main(out: Path) -> None:
    """Work of each of the two processes."""
    torch.set_num_threads(1)
    comm = process_group.start(torch.device("cpu"))
    policy = load_policy(str(LAPTOP))
    stop = stop_tokens(policy.model, policy.tokenizer)
    sampler = VllmSampler(EngineOptions(str(LAPTOP), "float32", 128, max_rows=ROWS), stop, memory_fraction=0.25)
    rows: list[dict[str, Any]] = []
    with Grader(GraderOptions(timeout=2.0, workers=1)) as grader:
        for turn in range(-1, TURNS):  # the first is not kept
            for prompts, rounds in [(size, 1) for size in FITTED] + [(size, 8) for size in JUDGED]:
                config = config_of(prompts, rounds)
                heard = Listening(sampler, {})
                collector = Collector(config, PromptStream(config, policy.tokenizer), heard, grader, comm)  # type: ignore[arg-type]
                start = 1000 * (turn + 1)
                comm.barrier()
                begin, cpu = time.perf_counter(), time.process_time()
                rollout = collector.collect(start, 1, 0, StepMetrics())
                spent, wall = time.process_time() - cpu, time.perf_counter() - begin
                ranks = comm.all_gather_object((spent, wall, heard.parts))
                rows.append(
                    {
                        "prompts": prompts,
                        "rounds": rounds,
                        "start": start,
                        "cpu": [each[0] for each in ranks],
                        "wall": max(each[1] for each in ranks),
                        "parts": [each[2] for each in ranks],
                        "right": [counts.right for counts in rollout.stats],
                    }
                )
    if comm.rank == 0:
        out.write_text(json.dumps(rows[len(FITTED) + len(JUDGED) :]))
    sampler.close()


@dataclass
class Replayed:
    """`Workload`: the responses of a real rollout; one that nobody finished is like another.

    lengths: by part. right: responses of a group, by number.
    """

    lengths: dict[int, int]
    right: dict[int, int]
    limit: int = 64

    def group(self, number: int, size: int) -> Drawn:
        known = list(self.lengths.values())
        parts = range(number * size, (number + 1) * size)
        lengths = [self.lengths.get(part, known[part % len(known)]) for part in parts]
        return Drawn(lengths, self.right.get(number, 0))


@dataclass
class Prompts(Stream):
    """Prompts of the mean length."""

    length: int

    def take(self, start: int, count: int) -> list[Prompt]:
        return [replace(prompt, tokens=[0] * self.length) for prompt in super().take(start, count)]


def replay(rate: CpuRate, row: dict[str, Any]) -> list[float]:
    """CPU seconds of each rank, by `Collector` on clocks."""
    known = {int(part): lengths for each in row["parts"] for part, lengths in each.items()}
    right = dict(enumerate(row["right"], start=row["start"]))
    workload = Replayed({part: length for part, (_, length) in known.items()}, right)
    slow = row["wall"] / max(row["cpu"])
    clock = replace(rate, **{name: slow * getattr(rate, name) for name in ("step", "row", "cached", "request")})
    engines = [Engine(clock) for _ in range(RANKS)]
    prompts = Prompts(round(np.mean([prompt for prompt, _ in known.values()])))
    config = config_of(row["prompts"], row["rounds"])

    def collect(simulated: SimulatedRank) -> None:
        engine = engines[simulated.rank]
        comm, sampler = ClockedRank(simulated, engine), ClockedSampler(engine, workload, SIZE)
        collector = Collector(config, prompts, sampler, Judge(), comm, AtOnce)  # type: ignore[arg-type]
        collector.collect(row["start"], 1, 0, StepMetrics())

    on_ranks(collect, RANKS)
    return [engine.busy / slow for engine in engines]


def judge(rows: Sequence[dict[str, Any]]) -> None:
    """Fit on the one kind of rollouts, print how the other comes out."""
    fitted = [row for row in rows if row["rounds"] == 1]
    calls = [
        (row["prompts"], cpu, list(parts.values()))
        for row in fitted
        for cpu, parts in zip(row["cpu"], row["parts"], strict=True)
    ]
    rate = fit(calls)
    print(f"fitted to rollouts of {FITTED} prompts that end after them: {rate}")
    for size in JUDGED:
        both, slower = [], []
        for row in (row for row in rows if row["rounds"] > 1 and row["prompts"] == size):
            found = replay(rate, row)
            both.append(sum(found) / sum(row["cpu"]))
            slower.append(max(found) / max(row["cpu"]))
        drawn = median(len(row["right"]) for row in rows if row["rounds"] > 1 and row["prompts"] == size)
        for name, shares in (("both ranks", both), ("the rank with more", slower)):
            verdict = "within 20%" if abs(median(shares) - 1) <= WITHIN else "NOT within 20%"
            each = " ".join(f"{share:.2f}" for share in shares)
            said = f"simulated / measured {median(shares):.2f} ({each})  {verdict}"
            print(f"{size} groups of {drawn:.0f} prompts, {name}: {said}")


def main() -> None:
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "rows.json"
        launcher = interpreter.command("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
        command = [*launcher, "-m", "perf.simulate_cpu_ranks", str(out)]
        subprocess.run(command, check=True, env=interpreter.environment())
        judge(json.loads(out.read_text()))


if __name__ == "__main__":
    main()
