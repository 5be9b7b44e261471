"""The RL loop in its order of events.

A step samples, grades, keeps the first mixed groups, takes old values (`draw`) and advantages; then for each
mini-batch: prepare, and for each micro-batch log-probs, loss, backward; optimiser step (`update`); at the end weights
to the sampler, metrics, checkpoint.
"""

import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path

from tepo.config.schema import RunConfig
from tepo.errors import RunFailed
from tepo.provenance import recorded
from tepo.training import distributed
from tepo.training.checks import check_backends, check_settings
from tepo.training.flat_rollout import FlatRollout
from tepo.training.metrics_log import MetricsLog, Report
from tepo.training.parts import Parts, limit_threads, open_parts
from tepo.training.progress import Pending, Progress
from tepo.training.recorder import Recorder
from tepo.training.run_folder import RunFolder
from tepo.training.token_dump import token_entries, write_token_dump
from tepo.training.update import MiniBatch, Updater

# What `Engine.step` would say of a mini-batch without tokens in the loss, after which no step is taken.
SKIPPED = {"actor/grad_norm": 0.0, "actor/skipped": 1.0}


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
    check_backends(config)
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
    with distributed.lost_ranks(), open_parts(config, run) as parts:
        check_unchanged(config, run)
        progress = parts.start
        log = MetricsLog(config, run, report) if parts.first else None
        with log or contextlib.nullcontext():
            if log:
                log.resume(progress.step)
            while progress.step < config.train.steps:
                progress = _step(run, parts, progress, log)


def _step(run: RunFolder, parts: Parts, progress: Progress, log: MetricsLog | None) -> Progress:
    """A rollout (`draw`) and its updates (`update`), the new weights to the sampler, metrics, checkpoint."""
    config, step = parts.config, progress.step + 1
    last, every = step == config.train.steps, config.train.token_dump_every
    recorder = Recorder(keep_tokens=parts.first and (last or (every > 0 and step % every == 0)))
    progress = draw(parts, progress, recorder)
    drawn, *later = progress.pending
    metrics = update(parts.updater, drawn.rollout, step, recorder)
    if recorder.keep_tokens:
        name = str(config.objective.get("name", ""))
        entries = token_entries(drawn.rollout, recorder.tokens, parts.policy.tokenizer)
        write_token_dump(run.tokens(step), step, name, entries)
    with recorder.time("sync"):
        parts.sync()
    validated: dict[str, float] = {}
    if parts.validation and (last or step % config.train.validate_every == 0):
        with recorder.time("testing"):
            validated = parts.validation.measure()
    progress = replace(progress, step=step, pending=tuple(later))
    row = {
        "training/global_step": step,
        "training/prompts": progress.prompts,
        "perf/trained_tokens": float(drawn.rollout.lengths.sum()),
        **drawn.metrics,
        **metrics,
        **validated,
        **recorder.timings(),
    }
    if log:
        log.write(row)
    if last or step % config.train.checkpoint_every == 0:
        saved = {"prompts": progress.prompts, "consumed": progress.consumed}
        run.save_checkpoint(step, saved, partial(parts.write, pending=progress.pending), parts.engine.comm)
    if log:
        log.report(step, row)
    return progress


def draw(parts: Parts, progress: Progress, recorder: Recorder) -> Progress:
    """The rollout of the next step, by the policy as it is: sample, grade, keep the first mixed groups, and take the
    values of the policy that sampled. With `train.staleness` = k, those of the k steps after it too, if they are not
    there yet: so each is drawn k steps before it is trained."""
    train, updater, drawn, pending = parts.config.train, parts.updater, [], list(progress.pending)
    last = min(progress.step + 1 + train.staleness, train.steps)
    for step in range(progress.step + 1 + len(pending), last + 1):
        rollout = parts.collector.collect(progress.prompts, step, progress.consumed, recorder)
        progress = replace(progress, prompts=progress.prompts + rollout.consumed, consumed=rollout.consumed)
        drawn.append((step, rollout))
    parts.sampler.sleep()
    for step, rollout in drawn:
        flat = FlatRollout(rollout.groups, parts.device)
        with recorder.time("old_log_prob"):
            updater.old_values(flat)
            # A rollout that waits is compared now: at its updates, the policy will not be the one that sampled.
            gap = updater.check_drawn(flat, step) if train.staleness else {}
        pending.append(Pending(step, flat, rollout.metrics() | gap))
    return replace(progress, pending=tuple(pending))


def update(updater: Updater, rollout: FlatRollout, step: int, recorder: Recorder) -> dict[str, float]:
    """All updates of a rollout with its old values: TEPO's Algorithm 1 on each mini-batch of each epoch.

    Returns metrics under verl's names. Raises RunFailed on a NaN loss, or where sampler and trainer disagree.
    """
    objective, engine, first = updater.objective, updater.engine, {}
    with recorder.time("adv"):
        advantages = objective.advantages(rollout.for_advantages(updater.config.train.max_new_tokens))
    learning_rate = updater.learning_rate(step)
    with recorder.time("update_actor"):
        for mini_batch in updater.mini_batches(rollout, advantages, step):
            any_tokens = accumulate(updater, mini_batch, recorder)
            if mini_batch.number == 0:
                stale = updater.config.train.staleness > 0  # otherwise the policy is still the one that sampled
                first = (updater.drift if stale else updater.check_gap)(mini_batch, recorder.gap)
            recorder.add_update(engine.step(learning_rate) if any_tokens else SKIPPED)
    settings = {"actor/lr": learning_rate, "actor/updates": float(recorder.updates)}
    return first | recorder.means(engine.comm) | settings


def accumulate(updater: Updater, mini_batch: MiniBatch, recorder: Recorder) -> bool:
    """Add up the gradient of a mini-batch (this rank's part of it) over its micro-batches.

    False when no token of it is in the loss, on any rank. Raises RunFailed on a NaN loss. The one point where an
    objective's loss is called.
    """
    losses = []
    plan = updater.prepare(mini_batch)  # denominators and selections
    for micro_batch in mini_batch.micro_batches:
        current = updater.log_probs(mini_batch, micro_batch)
        batch, part = mini_batch.select(plan, micro_batch)
        batch = replace(batch, logprobs=current.logprobs, entropies=current.entropies, full_kl=current.full_kl)
        out = updater.objective.loss(batch, part)
        updater.engine.backward(out.loss)
        losses.append(out.loss.detach())
        recorder.add(mini_batch, micro_batch, batch, out)
    return updater.check_finite(losses, plan.totals[0], mini_batch.step)


def check_unchanged(config: RunConfig, run: RunFolder) -> None:
    """Raises RunFailed when what was loaded into the run is no longer what its id says: nothing is trained on it."""
    if RunFolder.of(config).path != run.path:
        fix = "the same command again trains what is there now, as a run of its own"
        raise RunFailed(
            "the file of problems or the model folder changed while the run was starting", where=str(run.path), fix=fix
        )
