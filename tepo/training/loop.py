"""The RL loop in its order of events: TEPO's Algorithm 1, GRPO and its relatives with the same steps.

A step samples, grades and keeps the first mixed groups (`rollouts.next`), with the old log-probs of the policy that
sampled them; then advantages, and for each mini-batch: prepare, for each micro-batch log-probs, loss, backward, and
an optimiser step (`update`); at the end weights to the sampler, validation, metrics, checkpoint.
"""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from tepo.common import signals
from tepo.common.errors import Diverged
from tepo.config.run_config import TrainConfig
from tepo.policy.model.allocator import free_unused
from tepo.store.early_stop import EarlyStop, Ending, diverged
from tepo.training.distributed import process_group
from tepo.training.metrics.metrics_log import Report
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout_batch import FlatRollout, MiniBatch, mini_batches
from tepo.training.run import Run
from tepo.training.run_keeper import finish_step, kept, opened, stop_early
from tepo.training.setup import PreparedRun, TrainState, prepare
from tepo.training.update import Updater
from tepo.training.validation import START, Measured

# Figures that `Engine.step` would give for a mini-batch without tokens in the loss, after which no step is taken.
SKIPPED = {"actor/grad_norm": 0.0, "actor/grad_clipped": 0.0, "actor/update_rms": 0.0, "actor/skipped": 1.0}


def train(run: Run, report: Report = lambda step, row: None) -> Path:
    """Train a run to its end, going on from its newest checkpoint. Returns its folder.

    A run that collapses, saturates or diverges ends early and counts as finished, see `RunFolder.ending`.
    `report(step, metrics)` is called after each step. A finished run returns at once. Raises UserError when another
    process has the run or its files are damaged, RunFailed when the base itself is broken, sampler and trainer disagree
    or another rank died, Stopped when a scheduler asked for it.
    """
    folder = run.folder
    if folder.finished():
        if process_group.rank() == 0:
            folder.check_whole()
            folder.clean_up()
        return folder.path
    prepared = prepare(run)
    with kept(prepared) as outcome:
        if outcome.over:  # it ended while we waited for its lock
            return folder.path
        ending = outcome.ending = train_steps(prepared, run.config.train.steps, report)
        if ending is not None and ending.step - 1 not in folder.checkpoints():
            # Weights that diverged leave no way back: the steps before are trained again, to the last good ones.
            free_unused()
            train_steps(prepared, ending.step - 1, report)
    return folder.path


def train_steps(prepared: PreparedRun, last: int, report: Report) -> Ending | None:
    """Train from the newest checkpoint to step `last`. Returns how training ended before it, if it did; the newest
    checkpoint is then of the weights that count, or an earlier one where they have diverged."""
    with opened(prepared, report) as state:
        try:
            for step in range(state.progress.step + 1, last + 1):
                train_step(state, step)
            state.save_unsaved()
        except EarlyStop as stop:
            return stop_early(state, stop.with_traceback(None))  # whose frames would keep the model
    return None


def train_step(state: TrainState, step: int) -> None:
    """Draw the rollout of a step, make its updates, and hand the weights on.

    A request to stop ends a step that has made no update yet; after its first update a step is finished. Raises
    EarlyStop where training ends here, Stopped where it was asked to stop."""
    signals.end_if_asked(state.engine.comm)
    train, validation = state.config.train, state.validation
    # the first step's responses are those of the untrained policy
    dump = step in (1, train.steps) or (train.token_dump_every > 0 and step % train.token_dump_every == 0)
    metrics = StepMetrics(keep_tokens=state.first and dump)
    figures: Measured = {}
    try:
        if validation and step == 1 and train.validate_every < train.steps:  # a curve begins at the base
            with metrics.time("testing"):
                figures |= {f"{START}{name}": value for name, value in validation.measure().items()}
        # Responses of the policy as it is, graded, and of their groups those with right and wrong ones: a group whose
        # rewards are equal has no advantage. The old log-probs are those of this policy, before any update.
        with state.rollouts.next(step, metrics) as rollout:
            state.updater.value(rollout)
            figures |= update(state.updater, rollout, step, metrics)
            state.updater.track(rollout)
        if step == train.steps:
            state.updater.check_probabilities(rollout)
        with metrics.time("sync"):  # the next rollout must come from the policy that the updates made
            state.load_weights()
        if validation and (step == train.steps or step % train.validate_every == 0):
            with metrics.time("testing"):
                figures |= validation.measure()
    except Diverged as error:  # the weights are broken by an update of this step, or of the one before
        raise diverged(error, step if metrics.updates else step - 1) from error
    finish_step(state, rollout, metrics, figures)


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


def scheduled_learning_rate(train: TrainConfig, step: int) -> float:
    """Learning rate of a step, counted from 1; no warm-up where `warmup_steps` is 0."""
    return train.learning_rate * (min(1.0, step / train.warmup_steps) if train.warmup_steps else 1.0)
