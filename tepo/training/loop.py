"""The RL loop in its order of events: TEPO's Algorithm 1, GRPO and its relatives with the same steps.

A step samples, grades and keeps the first mixed groups (`rollouts.next`), with the old log-probs of the policy that
sampled them; then advantages, and for each mini-batch: prepare, for each micro-batch log-probs, loss, backward, and
an optimiser step (`update`); at the end weights to the sampler, validation, metrics, checkpoint.
"""

import contextlib
import json
from dataclasses import asdict, replace
from pathlib import Path

from torch import Tensor

from tepo.common import signals
from tepo.common.errors import Diverged, UserError
from tepo.common.files import write_atomic
from tepo.common.provenance import recorded
from tepo.config.run_config import RunConfig, chosen
from tepo.policy.model.allocator import free_unused
from tepo.store.early_stop import EarlyStop, Ending, diverged
from tepo.store.run_folder import AGAIN, RunFolder
from tepo.training.distributed import process_group
from tepo.training.distributed.liveness import ACTIVITY, Heartbeat, Limits, Watch
from tepo.training.learning_rate import scheduled_learning_rate
from tepo.training.metrics.metrics_log import MetricsLog, Report
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.metrics.throughput import step_figures
from tepo.training.metrics.token_dump import token_entries, write_token_dump
from tepo.training.rollout.collector import NoMixedGroups
from tepo.training.rollout.first_prompt import keep_first_prompt
from tepo.training.rollout.run_progress import StepRollout
from tepo.training.rollout_batch import FlatRollout, MiniBatch, mini_batches
from tepo.training.setup import PlannedSeconds, PreparedRun, TrainState, open_state, prepare
from tepo.training.update import Updater
from tepo.training.validation import START, Measured

# Figures that `Engine.step` would give for a mini-batch without tokens in the loss, after which no step is taken.
SKIPPED = {"actor/grad_norm": 0.0, "actor/grad_clipped": 0.0, "actor/update_rms": 0.0, "actor/skipped": 1.0}


def train(
    config: RunConfig,
    report: Report = lambda step, row: None,
    planned_seconds: PlannedSeconds = lambda config, gpus: None,
) -> Path:
    """Train one run to its end, going on from its newest checkpoint. Returns the run's folder.

    A run that collapses, saturates or diverges ends early and counts as finished, see `RunFolder.ending`.
    `report(step, metrics)` is called after each step; `planned_seconds` of one say how far apart checkpoints are, where
    the configuration leaves it open. A finished run returns at once. Raises UserError when another
    process has the run or its files are damaged, RunFailed when the base itself is broken, sampler and trainer disagree
    or another rank died, Stopped when a scheduler asked for it.
    """
    folder = RunFolder.of(config)
    if folder.finished() or folder.lacks_manifest(config):
        if process_group.rank() == 0:
            folder.complete(config)
            folder.check_whole()
            folder.clean_up()
        return folder.path
    run = prepare(config, folder, planned_seconds)
    if process_group.rank() > 0:  # rank 0 holds the lock and does the writing
        _train_to_the_end(run, report)
        return folder.path
    with folder.lock():
        if not folder.finished():  # it may have ended while we waited for the lock
            _train_with_manifest(run, report)
    return folder.path


def train_steps(state: TrainState, last: int, log: MetricsLog | None) -> None:
    """Train up to step `last`. Raises EarlyStop where training ends before, Stopped where it was asked to stop.

    Then `state.progress` is that of the last finished step: a step without an update is given up, and one that has some
    is finished before a request to stop is heard."""
    train, validation = state.config.train, state.validation
    while state.progress.step < last:
        signals.end_if_asked(state.engine.comm)
        step = state.progress.step + 1
        # the first step's responses are those of the untrained policy
        dump = step in (1, train.steps) or (train.token_dump_every > 0 and step % train.token_dump_every == 0)
        metrics = StepMetrics(keep_tokens=state.first and dump)
        figures: Measured = {}
        try:
            if validation and step == 1 and train.validate_every < train.steps:  # a curve begins at the base
                with metrics.time("testing"):
                    figures |= {f"{START}{name}": value for name, value in validation.measure().items()}
            with state.rollouts.next(step, metrics) as drawn:
                figures |= update(state.updater, drawn.rollout, step, metrics)
            if step == train.steps:
                state.updater.check_probabilities(drawn.rollout)
            with metrics.time("sync"):
                state.load_weights()
            if validation and (step == train.steps or step % train.validate_every == 0):
                with metrics.time("testing"):
                    figures |= validation.measure()
        except Diverged as error:  # the weights are broken by an update of this step, or of the one before
            raise diverged(error, step if metrics.updates else step - 1) from error
        _finish_step(state, drawn, metrics, figures, log)


def update(updater: Updater, rollout: FlatRollout, step: int, metrics: StepMetrics) -> dict[str, float]:
    """Make all updates of a rollout with its old log-probs: Algorithm 1 on each mini-batch of each epoch.

    Returns metrics under verl's names. Raises Diverged on a NaN loss, RunFailed where sampler and trainer disagree.
    """
    train, objective, engine, first = updater.config.train, updater.objective, updater.engine, {}
    with metrics.time("adv"):
        advantages = objective.advantages(rollout.for_advantages(train.max_new_tokens))
    learning_rate = scheduled_learning_rate(train, step)
    with metrics.time("update_actor"):
        for mini_batch in mini_batches(rollout, advantages, train, updater.dealer, step):
            any_tokens, logprobs = accumulate(updater, mini_batch, metrics)
            if mini_batch.number == 0:
                stale = train.staleness > 0  # otherwise the policy is still the one that sampled
                first = (updater.drift if stale else updater.check_gap)(mini_batch, logprobs)
            metrics.add_update(engine.step(learning_rate) if any_tokens else SKIPPED)
    metrics.work.train(rollout, train.epochs)
    settings = {"actor/lr": learning_rate, "actor/updates": float(metrics.updates)}
    drift = metrics.drift.metrics(
        objective.clip, engine.comm, exact=objective.needs.full_kl and objective.needs.full_kl_anchor == "old"
    )
    return first | metrics.means(engine.comm) | drift | settings


def accumulate(updater: Updater, mini_batch: MiniBatch, metrics: StepMetrics) -> tuple[bool, list[Tensor]]:
    """Add up the gradient of a mini-batch (this rank's part of it) over its micro-batches.

    Returns whether any token of it is in the loss, on any rank, and the current log-probs [n] of each micro-batch,
    detached. Raises Diverged on a NaN loss. The one point where an objective's loss is called.
    """
    losses, logprobs = [], []
    plan = updater.prepare(mini_batch)  # denominators and selections
    for micro_batch in mini_batch.micro_batches:
        current = updater.log_probs(mini_batch, micro_batch)
        batch, part = mini_batch.select(plan, micro_batch)
        batch = replace(batch, logprobs=current.logprobs, entropies=current.entropies, full_kl=current.full_kl)
        out = updater.objective.loss(batch, part)
        updater.engine.backward(out.loss)
        losses.append(out.loss.detach())
        logprobs.append(current.logprobs.detach())
        metrics.add(mini_batch, micro_batch, batch, out)
    return updater.check_finite(losses, plan.totals[0], mini_batch.step), logprobs


# what surrounds the algorithm -----------------------------------------------------------------------------------------
def _train_with_manifest(run: PreparedRun, report: Report) -> None:
    """Train, keeping the manifest true however it ends."""
    folder = run.folder
    if folder.config_file.exists():
        folder.check_config()
    elif folder.checkpoints() and not folder.manifest():
        what = "checkpoints lie there, and nothing says of which run: copied half?"
        raise UserError(what, where=str(folder.path), fix=AGAIN)
    folder.create(run.asked)
    folder.mark("running")
    try:
        with recorded(folder.path, "train", run.reasons):
            ending = _train_to_the_end(run, report)
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt | signals.Stopped) else "failed"
        with contextlib.suppress(Exception):  # a full disk may be the very error
            folder.mark(status, error=str(error) or type(error).__name__)
        raise
    if ending is None:
        folder.mark("finished", steps=run.config.train.steps)
    else:
        folder.mark("finished", steps=ending.step - 1, ending=asdict(ending))
    folder.keep_weights()


def _train_to_the_end(run: PreparedRun, report: Report) -> Ending | None:
    """Train, with signs of life for the other ranks. Weights that diverged leave no way back but to train the steps
    before again, where none of the checkpoints is of the last good ones."""

    def given_up(error: str) -> None:  # from beside the training, which cannot; the first rank holds the manifest
        if process_group.rank() == 0:
            run.folder.mark("failed", error=error)

    own, train = (process_group.rank(), process_group.world_size()), run.config.train
    watch = Watch(run.folder.path / "ranks", *own, train.max_new_tokens, Limits())
    with Heartbeat(watch, given_up), process_group.lost_ranks():
        ending = _train_to(train.steps, run, report)
        if ending is not None and ending.step - 1 not in run.folder.checkpoints():
            free_unused()
            _train_to(ending.step - 1, run, report)
    return ending


def _train_to(last: int, run: PreparedRun, report: Report) -> Ending | None:
    """Train from the newest checkpoint to step `last`. Returns how training ended before it, if it did.

    The newest checkpoint is then of the weights that count; where they have diverged, it may be an earlier one. Raises
    Stopped, with a checkpoint of the last finished step, so what was saved is never more than one rollout behind."""
    with open_state(run.config, run.folder, run.prompts) as state:
        run.check_unchanged()
        train, start = run.config.train, state.progress.step
        ACTIVITY.spent.clear()  # of an earlier run in this process
        log = MetricsLog(run.config, run.folder, report) if state.first else None
        if state.first:
            keep_first_prompt(state.collector.stream, run.folder)
        with log or contextlib.nullcontext(), signals.deferred(process_group.check_neighbours):
            if log:
                log.resume(start)
            try:
                train_steps(state, last, log)
            except EarlyStop as stop:
                return _stop_early(state, stop.with_traceback(None))  # whose frames would keep the model
            except signals.Stopped:
                if state.progress.step % chosen(train.checkpoint_every) and state.progress.step > start:
                    state.save()
                state.saver.finish()  # all ranks have agreed to stop
                raise
            if last < train.steps:
                state.save()
    return None


def _finish_step(
    state: TrainState, drawn: StepRollout, metrics: StepMetrics, figures: Measured, log: MetricsLog | None
) -> None:
    """Write what a step leaves: tokens, metrics, a checkpoint where one is due."""
    config, step = state.config, drawn.step
    state.progress = state.rollouts.progress(step)
    if metrics.keep_tokens:
        name = str(config.objective.get("name", ""))
        entries = token_entries(drawn.rollout, metrics.tokens, state.policy.tokenizer)
        write_token_dump(state.folder.tokens(step), step, name, entries)
    row = {
        "training/global_step": step,
        "training/prompts": state.progress.prompts,
        "training/responses": float(state.progress.prompts * config.train.samples_per_prompt),
        "perf/trained_tokens": float(drawn.rollout.lengths.sum()),
        **drawn.metrics,
        **figures,
        **step_figures(metrics, state.engine.comm, state.device, config.model, state.policy.model.config),
    }
    if log:
        log.write(row)
    if step == config.train.steps or step % chosen(config.train.checkpoint_every) == 0:
        state.save()
    else:
        state.saver.check()
    if log:
        log.report(step, row)


def _stop_early(state: TrainState, stop: EarlyStop) -> Ending:
    """See that the newest checkpoint is of the weights that count, or an earlier one where they have diverged since."""
    step = state.progress.step
    if isinstance(stop, NoMixedGroups) and stop.ending.step == 1 and state.first:
        # What the base answered: a person sees from it what is wrong.
        rows = []
        for group in stop.examples:
            texts = state.collector.stream.decode(group.responses)
            for response, text, reward in zip(group.responses, texts, group.rewards, strict=True):
                problem, facts = group.prompt.problem, {"right": bool(reward), "cut_off": not response.finished}
                rows.append({"prompt": problem.prompt, "gold": problem.answer, "response": text} | facts)
        if rows:
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            write_atomic(state.folder.examples_file, lines)
    if stop.ending.kind != "diverged":
        if step == 0 or step % chosen(state.config.train.checkpoint_every):
            state.save()
        return stop.ending
    state.saver.finish()
    if state.first:
        state.folder.forget(stop.ending.step - 1)
    if state.engine.comm is not None:
        state.engine.comm.barrier()
    return stop.ending
