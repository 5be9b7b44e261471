"""The RL loop: sample, grade, filter, advantages, update, weights to the sampler, metrics, checkpoint."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo.config.schema import RunConfig
from tepo.errors import RunFailed
from tepo.provenance import recorded
from tepo.training import distributed
from tepo.training.build import Parts, build, check_parts, limit_threads
from tepo.training.checks import check_settings
from tepo.training.flat import FlatRollout
from tepo.training.metrics import MetricsLog, Report, Stopwatch
from tepo.training.run_folder import RunFolder
from tepo.training.tallies import Tallies
from tepo.training.token_dump import TokenDump


@dataclass(frozen=True)
class Progress:
    """Where a run stands: the last finished step and the number of prompts drawn so far."""

    step: int = 0
    prompts: int = 0


def train(config: RunConfig, report: Report = lambda step, row: None) -> Path:
    """Train one run to its end, going on from its newest checkpoint. Returns the run's folder.

    `report(step, metrics)` is called after each step. A finished run returns at once. Raises UserError when another
    process has the run, RunFailed when the loss is NaN, no mixed group is left, sampler and trainer disagree
    or another rank died.
    """
    run = RunFolder.of(config)
    if run.finished():
        return run.path
    check_settings(config)
    check_parts(config)
    limit_threads(config)
    if distributed.rank() > 0:  # rank 0 holds the lock and does the writing
        _train(config, run, report)
        return run.path
    with run.lock():
        if not run.finished():  # it may have ended while we waited for the lock
            _train_locked(config, run, report)
    return run.path


def _train_locked(config: RunConfig, run: RunFolder, report: Report) -> None:
    """Train, keeping the manifest true however it ends."""
    run.create(config)
    run.mark("running")
    try:
        with recorded(run.path, "train"):
            _train(config, run, report)
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with contextlib.suppress(Exception):  # a full disk may be the very error
            run.mark(status, error=str(error) or type(error).__name__)
        raise
    run.mark("finished", steps=config.train.steps)


def _train(config: RunConfig, run: RunFolder, report: Report) -> None:
    """The steps from the newest checkpoint to the last."""
    with distributed.lost_ranks(), build(config, run) as parts:
        check_unchanged(config, run)
        progress, log = (
            Progress(parts.start_step, parts.start_prompts),
            MetricsLog(config, run, report) if parts.first else None,
        )
        with log or contextlib.nullcontext():
            if log:
                log.resume(progress.step)
            while progress.step < config.train.steps:
                progress, row = _step(config, run, parts, progress)
                if log:
                    log.write(row)
                if progress.step % config.train.checkpoint_every == 0 or progress.step == config.train.steps:
                    run.save_checkpoint(progress.step, {"prompts": progress.prompts}, parts.write, parts.engine.comm)
                if log:
                    report(progress.step, row)


def check_unchanged(config: RunConfig, run: RunFolder) -> None:
    """Raises RunFailed when what was loaded into the run is no longer what its id says: nothing is trained on it."""
    if RunFolder.of(config).path != run.path:
        fix = "the same command again trains what is there now, as a run of its own"
        raise RunFailed(
            "the file of problems or the model folder changed while the run was starting", where=str(run.path), fix=fix
        )


def _step(config: RunConfig, run: RunFolder, parts: Parts, progress: Progress) -> tuple[Progress, dict[str, Any]]:
    """One rollout and its updates, in the order of the paper's Algorithm 1."""
    step, watch, tallies = progress.step + 1, Stopwatch(), Tallies()
    rollout = parts.collector.collect(progress.prompts, step, watch)
    parts.collector.sampler.sleep()
    flat = FlatRollout(rollout.groups, parts.device)
    every = config.train.token_dump_every
    wanted = step == config.train.steps or (every > 0 and step % every == 0)
    dump = TokenDump(flat, parts.policy.tokenizer) if wanted and parts.first else None
    metrics = parts.updater.update(flat, step, watch, tallies, dump)
    if dump is not None:
        dump.write(run.path / "tokens" / f"step_{step:06d}.json", step, str(config.objective.get("name", "")))
    with watch("sync"):
        parts.sync()
    prompts = progress.prompts + rollout.consumed
    trained = float(flat.lengths.sum())
    row = {
        "training/global_step": step,
        "training/prompts": prompts,
        "perf/trained_tokens": trained,
        **rollout.metrics(),
        **metrics,
        **watch.metrics(),
    }
    return Progress(step, prompts), row
