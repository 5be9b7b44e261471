"""The RL loop: sample, grade, filter, advantages, update, weights to the sampler, metrics, checkpoint."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo.config.schema import RunConfig
from tepo.errors import UserError
from tepo.training.build import Parts, build
from tepo.training.flat import FlatRollout
from tepo.training.metrics import Stopwatch, WandbMirror
from tepo.training.rollout import collect
from tepo.training.run_folder import RunFolder, identity
from tepo.training.tallies import Tallies

Report = Callable[[int, dict[str, Any]], None]


@dataclass(frozen=True)
class Progress:
    """Where a run stands: the last finished step and the number of prompts drawn so far."""

    step: int = 0
    prompts: int = 0


def train(config: RunConfig, report: Report = lambda step, row: None) -> Path:
    """Train one run to its end, going on from its newest checkpoint. Returns the run's folder.

    `report(step, metrics)` is called after each step. A finished run returns at once. Raises UserError when another
    process has the run, RunFailed when the loss is NaN, no mixed group is left or sampler and trainer disagree.
    """
    run = RunFolder.of(config)
    if run.finished():
        return run.path
    lock = run.lock()
    if lock is None:
        raise UserError("another process is training this run", where=str(run.path), fix="wait for it; its result will be used", exit_code=3)
    with lock:
        if not run.finished():  # it may have ended while we waited for the lock
            _train_locked(config, run, report)
    return run.path


def _train_locked(config: RunConfig, run: RunFolder, report: Report) -> None:
    run.create(config)
    run.mark("running")
    mirror: WandbMirror | None = None
    try:
        mirror = WandbMirror(config.wandb, run.path, run.path.name, identity(config)["config"])
        with build(config, run) as parts:
            progress = Progress(parts.start_step, parts.start_prompts)
            run.truncate_metrics(progress.step)
            for row in run.metrics():
                report(row["training/global_step"], row)
            while progress.step < config.train.steps:
                progress, row = _step(config, parts, progress)
                run.append_metrics(row)
                mirror.log(row)
                if progress.step % config.train.checkpoint_every == 0 or progress.step == config.train.steps:
                    run.save_checkpoint(progress.step, {"prompts": progress.prompts}, parts.write)
                report(progress.step, row)
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with contextlib.suppress(Exception):  # a full disk may be the very error
            run.mark(status, error=str(error) or type(error).__name__)
        if mirror is not None:
            mirror.close(failed=True)
        raise
    run.mark("finished", steps=config.train.steps)
    mirror.close(failed=False)


def _step(config: RunConfig, parts: Parts, progress: Progress) -> tuple[Progress, dict[str, Any]]:
    """One rollout and its updates, in the order of the paper's Algorithm 1."""
    step, watch, tallies = progress.step + 1, Stopwatch(), Tallies()
    rollout = collect(parts.stream, progress.prompts, step, parts.sampler, parts.grader, config, watch)
    flat = FlatRollout(rollout.groups, parts.device)
    metrics = parts.updater.update(flat, step, watch, tallies)
    with watch("sync"):
        parts.sync()
    prompts = progress.prompts + rollout.consumed
    trained = float(flat.lengths.sum())
    row = {"training/global_step": step, "training/prompts": prompts, "perf/trained_tokens": trained, **rollout.metrics(config), **metrics, **watch.metrics()}
    return Progress(step, prompts), row
