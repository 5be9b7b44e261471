"""One RL step on the laptop model against TRL's GRPOTrainer:
same work, CPU seconds of one thread, the two sides in turn.

    OMP_NUM_THREADS=1 python -m perf.trl_step [--turns 7] [--peers PYTHON]

PYTHON (or TEPO_PEERS_PYTHON, default perf/.peers/bin/python,
made by `make peers`) holds trl; it runs in a process of its own.

The same on both sides: the shipped base in float32, the same 64 prompts each step, 8 samples a prompt at temperature 1
with at most 72 new tokens, exact-match rewards, advantages by group mean and deviation, the clipped objective of DAPO
(0.2/0.28, no KL, token mean), 4 mini-batches of 16 prompts x 2 epochs = 8 updates with fused AdamW and clipping at 1.
All groups are trained, those without variance too: TRL does not drop them. The learning rate is 1e-12 so that both stay
at the base and sample responses of the same distribution; their token counts are printed, and the ratio is corrected by
them (CPU seconds per sampled token).

In TRL's favour: no gradient checkpointing (its default is on), float32 like ours (its default is bfloat16), no
reference model, no logging, dynamic cache (faster than static: perf.sampler), one micro-batch an update. Against `trl`
as it ships: its tile is 32,768 wide even for 42 tokens, and malloc gives memory back; `trl, tuned` has a tile of 64 and
keeps freed memory, as ours does. On our side the grader's worker process counts too.
"""

import argparse
import json
import os
import subprocess
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

from perf.grader_throughput import cpu_seconds
from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.policy.model.model_location import resolve
from tepo.store.run_folder import RunFolder
from tepo.training.loop import update
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.collector import InFlight
from tepo.training.rollout_batch import FlatRollout
from tepo.training.setup import TrainState, open_state

ROOT = Path(__file__).parent.parent
LEARNING_RATE = 1e-12


def peers_python(given: str | None = None) -> Path | None:
    """The interpreter of the peers' environment, None where there is none."""
    path = Path(given or os.environ.get("TEPO_PEERS_PYTHON") or ROOT / "perf" / ".peers" / "bin" / "python")
    return path.absolute() if path.exists() else None  # the process starts in another folder


class Peer:
    """TRL's trainer in its process."""

    def __init__(self, python: Path, job: dict[str, Any], scratch: Path):
        file = scratch / f"job_{job['tuned']}.json"
        file.write_text(json.dumps({**job, "scratch": str(scratch)}))
        log = (scratch / "peer.log").open("w")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        command = [str(python), str(ROOT / "perf" / "trl_peer.py"), str(file)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=scratch
        )
        self.log = scratch / "peer.log"
        self.versions = self._answer()

    def step(self) -> dict[str, float]:
        """One step."""
        assert self.process.stdin is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"TRL's process ended: {self.log.read_text()[-2000:]}")

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


class Ours:
    """The parts of a run, stepped as the training loop does, without its filter: all groups are trained."""

    def __init__(self, parts: TrainState):
        self.parts, self.done = parts, 0

    def step(self) -> dict[str, float]:
        """One step on the next prompts of the stream."""
        parts, collector, recorder = self.parts, self.parts.collector, StepMetrics()
        count, size = parts.config.train.prompts_per_step, parts.config.train.samples_per_prompt
        workers = collector.grader.worker_pids()
        begin = cpu_seconds(workers)
        with closing(InFlight(collector, self.done + 1, recorder)) as under_way:
            under_way.add(range(self.done * count * size, (self.done + 1) * count * size, size))
            while len(under_way.groups) < count:
                under_way.graded()
        groups = [under_way.groups[number] for number in sorted(under_way.groups)]
        rollout = cpu_seconds(workers)
        flat = FlatRollout(groups, parts.device)
        parts.updater.passes.compute_old_logprobs(flat)
        metrics = update(parts.updater, flat, self.done + 1, recorder)
        end = cpu_seconds(workers)
        self.done += 1
        return {
            "cpu_s": end - begin,
            "rollout_s": rollout - begin,
            "updates": metrics["actor/updates"],
            "tokens": float(flat.lengths.sum()),
            "sequences": flat.sequence_count,
        }


def job_of(config: RunConfig, parts: TrainState, turns: int) -> dict[str, Any]:
    """Job of the peer: the prompts of every turn, in the order of our stream."""
    train = config.train
    problems = [prompt.problem for prompt in parts.collector.stream.take(0, train.prompts_per_step * turns)]
    return {
        "model": resolve(config.model.path),
        "prompts": [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems],
        "prompts_per_step": train.prompts_per_step,
        "mini_batch": train.mini_batch_prompts,
        "samples": train.samples_per_prompt,
        "epochs": train.epochs,
        "new_tokens": train.max_new_tokens,
        "learning_rate": LEARNING_RATE,
    }


def measure(
    turns: int = 7, python: Path | None = None, objective: str = "grpo_dapo", tuned: bool = True, short: bool = False
) -> dict[str, Any]:
    """Medians of both sides and of the ratio turn by turn, after two turns to warm up.

    short: 8 prompts a step instead of 64. Raises RuntimeError without the peers' Python."""
    python = python or peers_python()
    if python is None:
        raise RuntimeError("no environment of the peers: `make peers`, or name its Python by TEPO_PEERS_PYTHON")
    with tempfile.TemporaryDirectory() as store, ExitStack() as stack:
        size = ["train.prompts_per_step=8", "train.mini_batch_prompts=2"] if short else []
        config = compose([f"objective={objective}", f"train.learning_rate={LEARNING_RATE}", f"store={store}", *size])
        parts = stack.enter_context(open_state(config, RunFolder.of(config)))
        job = job_of(config, parts, turns + 3)
        sides: dict[str, Any] = {"tepo": Ours(parts)}
        for name in ("trl", "trl, tuned") if tuned else ("trl",):
            sides[name] = Peer(python, {**job, "tuned": name != "trl"}, Path(store))
            stack.callback(sides[name].close)
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for turn in range(turns + 2):
            for name, side in sides.items():
                row = side.step()
                if turn >= 2:
                    rows[name].append(row)
    result: dict[str, Any] = {
        "name": f"RL step against TRL's GRPOTrainer, {objective}",
        "versions": sides["trl"].versions,
        "turns": turns,
    }
    result["rows"] = {name: {key: median(row[key] for row in done) for key in done[0]} for name, done in rows.items()}
    for name in list(sides)[1:]:
        paired = list(zip(rows["tepo"], rows[name], strict=True))
        result["ratio" if name == "trl" else "ratio_tuned"] = median(
            peer["cpu_s"] / peer["tokens"] * ours["tokens"] / ours["cpu_s"] for ours, peer in paired
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--objective", default="grpo_dapo")
    parser.add_argument("--peers", type=Path, help="interpreter of the peers' environment")
    given = parser.parse_args()
    found = measure(given.turns, peers_python(given.peers and str(given.peers)), given.objective)
    print(f"{found['name']}: TRL {found['versions']['trl']}, {found['turns']} turns, one thread")
    for name, row in found["rows"].items():
        print(f"{name:12} " + "  ".join(f"{key} {value:.4g}" for key, value in row.items()))
    print(
        f"TRL takes {found['ratio']:.2f}x the CPU seconds per sampled token (target 4), "
        f"tuned {found['ratio_tuned']:.2f}x"
    )


if __name__ == "__main__":
    main()
