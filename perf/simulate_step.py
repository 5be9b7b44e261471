"""Seconds of a training step at paper scale, simulated: our queue, dealing and packing with a clock for the GPUs.

    python -m perf.simulate_step [--lengths samples.parquet] [--write | --stored]

64 prompts by 8 responses of 2k tokens on average, at most 8,192; half of the groups are mixed (or lengths and right
answers of a real evaluation, `--lengths`). Qwen2.5-7B and Qwen3-14B on 8 and 16 H100, by rounds, by the queue, by the
queue with sequences dealt by cost, one step off policy, and by the schedule of verl's DAPO recipe; then these models
and Qwen2.5-32B with sampling engines of several GPUs (`sampler.tensor_parallel`). Constants and their sources:
tepo/planning/simulator/cards.py. It says first whether it reproduces the step that verl publishes within 25%.
More GPUs: `python -m perf.simulate_sizes`.
Not simulated: checkpoints, grading, validation, an optimiser in main memory (which the 32B has).
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tepo.common.text import counted
from tepo.config.compose import compose
from tepo.config.run_config import chosen
from tepo.planning.simulator import evaluations, published, schedules, updates
from tepo.planning.simulator.cards import SYNC, Decoding, Training
from tepo.planning.simulator.engine_sizes import FIXED, engine_sizes
from tepo.planning.simulator.engine_sizes import MODELS as CUT
from tepo.planning.simulator.evaluations import Evaluation
from tepo.planning.simulator.schedules import Rollout, Setup
from tepo.planning.simulator.workload import PROMPT, Lognormal, MeasuredLengths, Workload
from tepo.policy.model.shapes import KNOWN, Shape
from tepo.training.resources.gpu_cards import H100

RESULT = Path(__file__).parent / "results" / "simulation.json"
BLOCK = 256  # rows that one engine measured at a time
LEFT = 0.85  # of a GPU for an engine that shares it with nothing
VERL_MEMORY, VERL_ROWS, VERL_TIMES = 0.8, 1024, 3  # of its DAPO recipe; its default of rows
SPLITS = (0.25, 0.5, 0.75)  # of the GPUs that sample, one step off policy
WARM, SHOWN = 1, 3  # steps before those that are averaged: the queue's first block is as large as the step before


@dataclass(frozen=True)
class Model:
    """A model and the share of a GPU that its engine has beside the trainer: 0.4 as shipped; at that the 14B has no
    cache left, and beside ZeRO-3 on 8 GPUs 0.55 is free."""

    name: str
    shape: Shape
    memory: float


MODELS = (Model("qwen2.5-7b", KNOWN["Qwen/Qwen2.5-7B"], 0.4), Model("qwen3-14b", KNOWN["Qwen/Qwen3-14B"], 0.55))


@dataclass(frozen=True)
class Step:
    """Seconds by phase; least: the rollout's lower bound; drawn: tokens decoded; consumed: prompts; busy: of the
    engines; imbalance: slowest rank over the mean in an update."""

    model: str
    gpus: int
    schedule: str
    rollout: float
    least: float
    logprobs: float
    updates: float
    total: float
    drawn: float
    consumed: float
    busy: float
    imbalance: float


MEANS = ("rollout", "least", "logprobs", "updates", "total", "drawn", "consumed", "busy")


@dataclass(frozen=True)
class SimulatedRun:
    """A model on so many H100 with a workload; overrides: of scale=paper."""

    model: Model
    gpus: int
    workload: Workload
    overrides: tuple[str, ...] = ()

    def setup(self, memory: float, rows: int | None = None, engines: int | None = None) -> Setup:
        config = compose(["scale=paper", f"model={self.model.name}", *FIXED, *self.overrides])
        decoding = Decoding(H100, self.model.shape, memory, rows or chosen(config.sampler.max_rows))
        return Setup(config, decoding, engines or self.gpus, self.workload)

    def step(self, schedule: str, rollout: Rollout, done: updates.Trained) -> Step:
        total = rollout.seconds + done.logprobs + done.updates + SYNC
        return self._row(schedule, rollout, done, total)

    def _row(self, schedule: str, rollout: Rollout, done: updates.Trained, total: float) -> Step:
        phases = (rollout.seconds, rollout.least, done.logprobs, done.updates, total)
        counts = (rollout.drawn, rollout.consumed, rollout.busy, done.imbalance)
        return Step(self.model.name, self.gpus, schedule, *phases, *counts)

    def queued(self, setup: Setup) -> list[tuple[int, Rollout]]:
        """Rollouts of consecutive steps by the queue, each with its first prompt."""
        return schedules.in_turn(setup, WARM + SHOWN)[WARM:]

    def steps(self) -> list[Step]:
        """Every schedule, on the same prompts, and one step off policy."""
        setup = self.setup(self.model.memory)
        rows = [self._schedules(setup, start, queue) for start, queue in self.queued(setup)]
        rounds, queue, balanced, verl = (_mean(same) for same in zip(*rows, strict=True))
        return [rounds, queue, balanced, self.one_step_off(), verl]

    def _schedules(self, setup: Setup, start: int, queue: Rollout) -> list[Step]:
        config, training = setup.config, Training(H100, self.model.shape, self.gpus)
        rounds = schedules.by_rounds(setup, start)
        verl = schedules.by_generation_batches(self.setup(VERL_MEMORY, VERL_ROWS), start, VERL_TIMES)
        sizes = config.train.mini_batches, config.train.epochs
        return [
            self.step("rounds", rounds, updates.ours(training, config, rounds.lengths, balanced=False)),
            self.step("queue", queue, updates.ours(training, config, queue.lengths, balanced=False)),
            self.step("queue + balance", queue, updates.ours(training, config, queue.lengths)),
            self.step("verl's DAPO", verl, updates.verl(training, verl.lengths, *sizes, PROMPT)),
        ]

    def one_step_off(self) -> Step:
        """The fastest split of the GPUs into those that sample the next step and those that train this one. Old
        log-probs are taken when both are done, as `tepo.training.rollout.prefetch` has it."""

        def split(share: float) -> Step:
            sampling = max(1, int(share * self.gpus))
            setup, training = self.setup(LEFT, engines=sampling), Training(H100, self.model.shape, self.gpus - sampling)
            rows = []
            for _, rollout in self.queued(setup):
                done = updates.ours(training, setup.config, rollout.lengths)
                total = max(rollout.seconds, done.updates) + done.logprobs + SYNC
                rows.append(self._row(f"one step off, {sampling} sample", rollout, done, total))
            return _mean(rows)

        return min(map(split, SPLITS), key=lambda step: step.total)

    def evaluations(self) -> dict[str, Evaluation]:
        """Measuring a run on the papers' benchmarks."""
        setup = self.setup(LEFT)
        dealt = evaluations.dealt(setup)
        return {"one engine, blocks": evaluations.in_blocks(setup, dealt.samples, BLOCK), "dealt": dealt}


def _mean(steps: Sequence[Step]) -> Step:
    """The means over steps; of the imbalance the largest."""
    fields = {name: sum(getattr(step, name) for step in steps) / len(steps) for name in MEANS}
    return replace(steps[0], imbalance=max(step.imbalance for step in steps), **fields)


def measure(workload: Workload, gpus: tuple[int, ...] = (8, 16)) -> Any:
    """All that the command prints."""
    checks, mean = published.check()
    seven = MODELS[0]
    steps = [step for model in MODELS for size in gpus for step in SimulatedRun(model, size, workload).steps()]
    return {
        "published": {
            "mean": mean,
            "checks": [asdict(one) | {"holds": one.holds} for one in checks],
            "others": [asdict(one) for one in published.others()],
        },
        "steps": [asdict(step) for step in steps],
        "evaluation": {
            str(size): {way: asdict(one) for way, one in SimulatedRun(seven, size, workload).evaluations().items()}
            for size in (1, *gpus)
        },
        "engine_sizes": [asdict(row) for name in CUT for size in gpus for row in engine_sizes(name, size, workload)],
    }


def show(found: Any) -> None:
    """The tables in words."""
    judged = [one for one in found["published"]["checks"] if one["judged"]]
    print(f"verl's published step, 32 H20, responses of {found['published']['mean']:.0f} tokens on average:")
    for one in found["published"]["checks"]:
        verdict = ("within 25%" if one["holds"] else "NOT within 25%") if one["judged"] else ""
        print(
            f"  {one['phase']:26} published {one['published']:5.0f} s, simulated {one['simulated']:5.0f} s  {verdict}"
        )
    for one in found["published"]["others"]:
        print(
            f"  not judged: {one['phase']:42} published {one['published']:4.0f} s, simulated {one['simulated']:4.0f} s"
        )
    if not all(one["holds"] for one in judged):
        print("  not reproduced: the rows of verl below are no comparison")
    print(
        f"\n{'':11} {'GPUs':>4} {'schedule':24} {'rollout':>8} {'least':>6} {'log-prob':>8} {'update':>7} {'step':>6}"
        f" {'busy':>5} {'max/mean':>8}"
    )
    for row in found["steps"]:
        print(
            f"{row['model']:11} {row['gpus']:4} {row['schedule']:24} {row['rollout']:8.1f} {row['least']:6.1f}"
            f" {row['logprobs']:8.1f} {row['updates']:7.1f} {row['total']:6.1f} {row['busy']:5.0%}"
            f" {row['imbalance']:8.3f}"
        )
    for size, ways in found["evaluation"].items():
        for way, one in ways.items():
            print(
                f"evaluation, {one['samples']:,} samples, {counted(int(size), 'GPU')}, {way}:"
                f" {one['seconds'] / 60:.1f} min (at least {one['least'] / 60:.1f}), {one['idle']:.1%} idle"
            )
    show_engine_sizes(found["engine_sizes"])
    for line in verdicts(found):
        print(line)


def show_engine_sizes(rows: Sequence[Any]) -> None:
    heads = f"{'an engine':>9} {'full rows':>9} {'rollout':>8} {'busy':>5} {'step':>6}"
    print(f"\n{'queue + balance':15} {'GPUs':>4} {heads}")
    for row in rows:
        print(
            f"{row['model']:15} {row['gpus']:4} {row['size']:9} {row['rows']:9} {row['rollout']:8.1f}"
            f" {row['busy']:5.0%} {row['total']:6.1f}"
        )


def verdicts(found: Any) -> Iterator[str]:
    """The targets for 7B on 8 GPUs, met or missed."""
    rows = {row["schedule"]: row for row in found["steps"] if (row["model"], row["gpus"]) == (MODELS[0].name, 8)}
    ours, rounds, verl = rows["queue + balance"], rows["rounds"], rows["verl's DAPO"]
    evaluation = found["evaluation"]["8"]["dealt"]
    targets = (
        ("rollout / its lower bound", ours["rollout"] / ours["least"], 1.3),
        ("rollout / rounds", ours["rollout"] / rounds["rollout"], 0.35),
        ("step / verl's DAPO", ours["total"] / verl["total"], 1.0),
        ("step / rounds", ours["total"] / rounds["total"], 0.4),
        (
            "imbalance, 16 ranks",
            max(r["imbalance"] for r in found["steps"] if r["gpus"] == 16 and r["schedule"] == "queue + balance"),
            1.02,
        ),
        ("evaluation, minutes", evaluation["seconds"] / 60, 6.0),
        ("evaluation, idle share", evaluation["idle"], 0.1),
    )
    for name, value, limit in targets:
        yield f"{name}: {value:.3g}, target <= {limit:g}{'' if value <= limit else '  MISSED'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, help="samples.parquet of a finished evaluation")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="keep the result in perf/results/simulation.json")
    what.add_argument("--stored", action="store_true", help="print what is kept")
    given = parser.parse_args()
    if given.stored:
        found = json.loads(RESULT.read_text())
    else:
        found = measure(MeasuredLengths(given.lengths) if given.lengths else Lognormal(2000, 8192))
    if given.write:
        RESULT.write_text(json.dumps(json.loads(RESULT.read_text()) | found, indent=1) + "\n")
    show(found)


if __name__ == "__main__":
    main()
