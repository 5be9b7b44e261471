"""One RL step beside TRL's GRPOTrainer: the same work, CPU seconds of one thread, in turn. `perf.small_lm` measures it
on a real language model as well.

TRL runs in a process of its own, with the peers' Python (`make peers`, or TEPO_PEERS_PYTHON).

The same on both sides: the shipped base in float32, the same 64 prompts each step, 8 samples a prompt at temperature 1
with at most 72 new tokens, exact-match rewards, advantages by group mean and deviation, the clipped objective of DAPO
(0.2/0.28, no KL, token mean), 4 mini-batches of 16 prompts x 2 epochs = 8 updates with fused AdamW and clipping at 1.
All groups are trained, those without variance too: TRL does not drop them. The learning rate is 1e-12 so that both stay
at the base and sample responses of the same distribution; the ratio is corrected by their token counts (CPU seconds per
sampled token).

In TRL's favour: no gradient checkpointing (its default is on), float32 like ours (its default is bfloat16), no
reference model, no logging, dynamic cache (faster than static), one micro-batch an update. Against it: its tile is
32,768 wide even for 42 tokens, and malloc gives memory back. On our side the grader's worker process counts too.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from perf.fused import ROOT, peers_python
from perf.grader_speed import cpu_seconds
from perf.ratios import BenchmarkRow, Unavailable, in_turn
from tepo.config.compose import compose
from tepo.policy.model.model_location import resolve
from tepo.problems.prompt_format import render_prompt
from tepo.training.loop import update
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.collector import InFlight
from tepo.training.rollout_batch import FlatRollout
from tepo.training.run import Run
from tepo.training.setup import TrainState, open_state

LEARNING_RATE = 1e-12
SMALL = ["train.prompts_per_step=8", "train.mini_batch_prompts=2"]  # a step of 64 responses


class StepCost(NamedTuple):
    """Costs of a step. seconds: of CPU, all of it. tokens: that it sampled. sampling: of the seconds, with grading;
    0 where that is not known."""

    seconds: float
    tokens: float
    sampling: float = 0.0


Step = Callable[[int], StepCost]
Sides = Callable[[TrainState, Step], dict[str, Step]]


def measure(turns: int, short: bool) -> list[BenchmarkRow]:
    """short: 8 prompts a step instead of 64."""
    found = steps(SMALL if short else [], turns, warm=2)
    return [against_trl("TRL's RL step (trl) / ours, GRPO/DAPO", found, 4.0)]


def steps(
    overrides: list[str], turns: int, warm: int, more: Sides = lambda parts, own: {"tepo": own}
) -> dict[str, list[StepCost]]:
    """Steps of a configuration, `tepo`, and of TRL, `trl`, in turn. more: what stands for ours, with other sides."""
    python = peers_python()
    if python is None:
        raise Unavailable("no environment of the peers (make peers, or TEPO_PEERS_PYTHON)")
    if subprocess.run([python, "-c", _HAS_TRL], check=False).returncode:
        raise Unavailable(f"{python} has no trl (make peers)")
    with tempfile.TemporaryDirectory() as store, ExitStack() as stack:
        fixed = ["objective=grpo_dapo", f"train.learning_rate={LEARNING_RATE}", f"store={store}"]
        config = compose([*overrides, *fixed])
        parts = stack.enter_context(open_state(Run(config)))
        theirs = peer(python, job_of(parts, turns + warm + 1), Path(store), stack)
        return in_turn({**more(parts, ours(parts)), "trl": theirs}, turns, warm)


_HAS_TRL = "import importlib.util as util; raise SystemExit(util.find_spec('trl') is None)"


def against_trl(name: str, found: dict[str, list[StepCost]], target: float) -> BenchmarkRow:
    """The row of TRL's cost over ours, each for a token that it sampled."""
    paired = zip(found["tepo"], found["trl"], strict=True)
    ratio = median(trl.seconds / trl.tokens * own.tokens / own.seconds for own, trl in paired)
    costs = (median(cost.seconds for cost in found[side]) for side in ("tepo", "trl"))
    return BenchmarkRow(name, "CPU s", *costs, ratio, target, True)


def ours(parts: TrainState) -> Step:
    """Steps on the next prompts of the stream as the training loop makes them, without its filter: all groups are
    trained."""
    train, workers = parts.config.train, parts.collector.grader.worker_pids()
    count, size = train.prompts_per_step, train.samples_per_prompt

    def step(turn: int) -> StepCost:
        begin, recorder = cpu_seconds(workers), StepMetrics()
        with closing(InFlight(parts.collector, turn + 1, recorder)) as under_way:
            under_way.add(range(turn * count * size, (turn + 1) * count * size, size))
            while len(under_way.groups) < count:
                under_way.graded()
        sampling = cpu_seconds(workers) - begin
        rollout = FlatRollout([under_way.groups[number] for number in sorted(under_way.groups)], parts.device)
        parts.updater.compute_old_logprobs(rollout)
        update(parts.updater, rollout, turn + 1, recorder)
        return StepCost(cpu_seconds(workers) - begin, float(rollout.lengths.sum()), sampling)

    return step


def job_of(parts: TrainState, turns: int) -> dict[str, Any]:
    """Job of the peer: the prompts of every turn, in the order of our stream."""
    train = parts.config.train
    prompts = parts.collector.stream.take(0, train.prompts_per_step * turns)
    how = {"prompt": parts.config.data.prompt, "wrap": parts.config.model.wrap}
    texts = [render_prompt(prompt.problem.prompt, parts.policy.tokenizer, **how) for prompt in prompts]
    return {
        "model": resolve(parts.config.model.path),
        "dtype": parts.config.model.dtype,
        "prompts": [
            {"prompt": text, "answer": prompt.problem.answer} for text, prompt in zip(texts, prompts, strict=True)
        ],
        "prompts_per_step": train.prompts_per_step,
        "mini_batch": train.mini_batch_prompts,
        "samples": train.samples_per_prompt,
        "epochs": train.epochs,
        "new_tokens": train.max_new_tokens,
        "learning_rate": LEARNING_RATE,
    }


def peer(python: str, job: dict[str, Any], scratch: Path, stack: ExitStack) -> Step:
    """Steps of TRL's trainer in its process, which ends with the stack."""
    file, log = scratch / "job.json", scratch / "log"
    file.write_text(json.dumps({**job, "scratch": str(scratch)}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    command, pipes = [python, str(ROOT / "perf/trl_peer.py"), str(file)], {"stdin": subprocess.PIPE, "text": True}
    pipes |= {"stdout": subprocess.PIPE, "stderr": stack.enter_context(log.open("w")), "cwd": scratch}
    process = subprocess.Popen(command, env=environment, **pipes)
    stack.callback(process.wait)
    stack.callback(process.kill)

    def answer() -> dict[str, Any]:
        for line in process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"TRL's process ended: {log.read_text()[-2000:]}")

    def step(turn: int) -> StepCost:
        process.stdin.write("step\n")
        process.stdin.flush()
        row = answer()
        return StepCost(row["cpu_s"], row["tokens"])

    answer()  # it is ready
    return step
