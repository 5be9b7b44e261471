"""The RL loop in its order of events.

A step samples, grades, keeps the first mixed groups, takes old values (`draw`) and advantages; then for each
mini-batch: prepare, and for each micro-batch log-probs, loss, backward; optimiser step (`update`); at the end weights
to the sampler, metrics, checkpoint. Only stale rollouts of a sampler outside of the run are drawn beside `update`.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from tepo.common import signals
from tepo.common.errors import Diverged, RunFailed
from tepo.common.files import write_atomic
from tepo.common.provenance import recorded
from tepo.config.run_config import RunConfig, chosen
from tepo.policy.model.allocator import free_unused, grow_segments
from tepo.sampling.backends import sampler_backend
from tepo.store.early_stop import Ended, Ending, check_rewards
from tepo.store.run_folder import RunFolder
from tepo.training.batch import FlatRollout
from tepo.training.distributed import process_group
from tepo.training.distributed.activity import ACTIVITY
from tepo.training.distributed.heartbeat import Heartbeat
from tepo.training.distributed.liveness import Limits, Watch
from tepo.training.metrics.metrics_log import MetricsLog, Report
from tepo.training.metrics.step_metrics import Recorder
from tepo.training.metrics.throughput import step_figures
from tepo.training.metrics.token_dump import token_entries, write_token_dump
from tepo.training.preflight import check_machine, check_settings
from tepo.training.rollout.progress import Progress
from tepo.training.rollout.rollouts import sample, score
from tepo.training.setup import Parts, PlannedSeconds, chosen_here, limit_threads, open_parts, pick_device
from tepo.training.update import MiniBatch, Updater
from tepo.training.validation import Measured

# What `Engine.step` would say of a mini-batch without tokens in the loss, after which no step is taken.
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
    run = RunFolder.of(config)
    if run.finished():
        run.check_whole()
        if process_group.rank() == 0:
            run.clean_up()
        return run.path
    check_settings(config)
    if sampler_backend(config.sampler.kind).segments_may_grow(config):
        grow_segments()  # before the checks: some of them try what they check on the GPU
    asked, (config, why) = config, chosen_here(config, planned_seconds)
    check_machine(config, run.path)
    pick_device(config.engine.device)
    limit_threads(config)
    if process_group.rank() > 0:  # rank 0 holds the lock and does the writing
        _train(config, run, report, asked)
        return run.path
    with run.lock():
        if not run.finished():  # it may have ended while we waited for the lock
            _train_locked(config, run, report, asked, why)
    return run.path


def _train_locked(config: RunConfig, run: RunFolder, report: Report, asked: RunConfig, why: Mapping[str, str]) -> None:
    """Train, keeping the manifest true however it ends. asked: the configuration that the run is called after; why:
    what was chosen where it leaves a setting open."""
    if run.config_file.exists():
        run.check_config(paths=True)
    run.create(asked)
    run.mark("running")
    try:
        with recorded(run.path, "train", why):
            ending = _train(config, run, report, asked)
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt | signals.Stopped) else "failed"
        with contextlib.suppress(Exception):  # a full disk may be the very error
            run.mark(status, error=str(error) or type(error).__name__)
        raise
    if ending is None:
        run.mark("finished", steps=config.train.steps)
    else:
        run.mark("finished", steps=ending.step - 1, ending=asdict(ending))
    run.keep_weights()


def _train(config: RunConfig, run: RunFolder, report: Report, asked: RunConfig) -> Ending | None:
    """The steps from the newest checkpoint to the last, or to where training ends. The newest checkpoint is then of the
    weights that count."""
    own = process_group.rank(), process_group.world_size()
    watch = Watch(run.path / "ranks", *own, config.train.max_new_tokens, Limits())
    with Heartbeat(watch, partial(_given_up, run)), process_group.lost_ranks():
        ending = _train_to(config.train.steps, config, run, report, asked)
        if ending is not None and ending.step - 1 not in run.checkpoints():  # what diverged has no way back but this
            free_unused()
            _train_to(ending.step - 1, config, run, report, asked)
    return ending


def _given_up(run: RunFolder, error: str) -> None:
    """Mark the run from beside the training, which cannot; the first rank holds the manifest."""
    if process_group.rank() == 0:
        run.mark("failed", error=error)


def _train_to(last: int, config: RunConfig, run: RunFolder, report: Report, asked: RunConfig) -> Ending | None:
    """The steps from the newest checkpoint to one, with a checkpoint of it, or to where training ends.

    Asked to stop, a step that has no update yet is given up, and one that has is finished: what was saved last is
    never more than one rollout behind. Raises Stopped then, with a checkpoint of the last finished step."""
    with open_parts(config, run) as parts:
        check_unchanged(asked, run)
        progress = parts.start
        ACTIVITY.spent.clear()  # of an earlier run in this process
        log = MetricsLog(config, run, report) if parts.first else None
        with log or contextlib.nullcontext(), signals.deferred(process_group.check_neighbours):
            if log:
                log.resume(progress.step)
            try:
                while progress.step < last:
                    signals.end_if_asked(parts.engine.comm)
                    progress = _step(run, parts, progress, log)
            except Ended as ended:
                return _close(run, parts, progress, ended.ending)
            except signals.Stopped:
                if progress.step % chosen(config.train.checkpoint_every) and progress.step > parts.start.step:
                    _save(parts, progress)
                parts.saver.finish()  # all ranks have agreed to stop
                raise
            if last < config.train.steps:
                _save(parts, progress)
    return None


def _close(run: RunFolder, parts: Parts, progress: Progress, ending: Ending) -> Ending:
    """See that the newest checkpoint is of the weights that count, or an earlier one where they have diverged since."""
    if ending.kind != "diverged":
        if progress.step == 0 or progress.step % chosen(parts.config.train.checkpoint_every):
            _save(parts, progress)
        return ending
    parts.saver.finish()
    if parts.first:
        run.forget(ending.step - 1)
    if parts.engine.comm is not None:
        parts.engine.comm.barrier()
    return ending


def _save(parts: Parts, progress: Progress) -> None:
    """Begin a checkpoint of the weights as they are; it is there at the latest when the parts are closed."""
    parts.saver.save(progress.step, progress.saved, partial(parts.files, pending=progress.pending))


def _step(run: RunFolder, parts: Parts, progress: Progress, log: MetricsLog | None) -> Progress:
    """A rollout (`draw`) and its updates (`update`), the new weights to the sampler, metrics, checkpoint.

    Raises Ended where training ends; `progress` is then as before."""
    config, step = parts.config, progress.step + 1
    last, every = step == config.train.steps, config.train.token_dump_every
    recorder = Recorder(keep_tokens=parts.first and (last or (every > 0 and step % every == 0)))
    try:
        with _diverging(step):
            before = _untrained(parts, step, recorder)
            progress = draw(parts, progress, recorder)
    except Ended:
        if step == 1 and parts.first:
            _keep_examples(run, parts, recorder)
        raise
    drawn = progress.pending[0]
    rewards = (*progress.rewards, drawn.metrics["critic/score/mean"])
    check_rewards(rewards, config.train.collapse_window)
    progress, metrics = _trained(parts, progress, recorder)
    metrics = before | metrics
    with _diverging(step, recorder):
        with recorder.time("sync"):
            parts.sync()
        metrics |= _validated(parts, step, recorder)
    if recorder.keep_tokens:
        name = str(config.objective.get("name", ""))
        entries = token_entries(drawn.rollout, recorder.tokens, parts.policy.tokenizer)
        write_token_dump(run.tokens(step), step, name, entries)
    progress = replace(progress, step=step, pending=progress.pending[1:], rewards=rewards)
    row = {
        "training/global_step": step,
        "training/prompts": progress.prompts,
        "training/responses": float(progress.prompts * config.train.samples_per_prompt),
        "perf/trained_tokens": float(drawn.rollout.lengths.sum()),
        **drawn.metrics,
        **metrics,
        **step_figures(parts, recorder),
    }
    if log:
        log.write(row)
    if last or step % chosen(config.train.checkpoint_every) == 0:
        _save(parts, progress)
    else:
        parts.saver.check()
    if log:
        log.report(step, row)
    return progress


def _keep_examples(run: RunFolder, parts: Parts, recorder: Recorder) -> None:
    """What the base answered where no group was mixed: a person sees from it what is wrong."""
    rows = []
    for group in recorder.examples:
        texts = parts.collector.stream.decode([response.tokens for response in group.responses])
        for response, text, reward in zip(group.responses, texts, group.rewards, strict=True):
            problem, facts = group.prompt.problem, {"right": bool(reward), "cut_off": not response.finished}
            rows.append({"prompt": problem.prompt, "gold": problem.answer, "response": text} | facts)
    if rows:
        write_atomic(run.examples_file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _untrained(parts: Parts, step: int, recorder: Recorder) -> Measured:
    """Accuracy of the policy before its first update, for runs with a curve: those that validate before their end."""
    train = parts.config.train
    if not parts.validation or step > 1 or train.validate_every >= train.steps:
        return {}
    with recorder.time("testing"):
        return parts.validation.measure_start()


def _validated(parts: Parts, step: int, recorder: Recorder) -> Measured:
    """Accuracy on validation problems, after the steps that have it."""
    train = parts.config.train
    if not parts.validation or (step < train.steps and step % train.validate_every):
        return {}
    with recorder.time("testing"):
        return parts.validation.measure()


def draw(parts: Parts, progress: Progress, recorder: Recorder) -> Progress:
    """The rollout of the next step, by the policy as it is: sample, grade, keep the first mixed groups, and take the
    values of the policy that sampled. With `train.staleness` = k, those of the k steps after it too, if they are not
    there yet: so each is drawn k steps before it is trained. Raises Ended where there is none for the next step."""
    last = min(progress.step + 1 + parts.drawn_ahead, parts.config.train.steps)
    sampled = sample(parts.collector, progress, last, recorder)
    parts.sampler.sleep()
    progress = score(parts.updater, sampled, parts.device, recorder)
    if not progress.pending:
        assert progress.ending is not None
        raise Ended(progress.ending.kind, progress.ending.step, progress.ending.why)
    return progress


def _trained(parts: Parts, progress: Progress, recorder: Recorder) -> tuple[Progress, dict[str, float]]:
    """The updates of the next step, and their metrics. A sampler outside of the run draws beside them what `draw` has
    left to it; then the values of the policy that sampled are taken, which is that from before the updates."""
    step, train, rollout = progress.step + 1, parts.config.train, progress.pending[0].rollout

    def updated() -> dict[str, float]:
        with _diverging(step, recorder):
            metrics = update(parts.updater, rollout, step, recorder)
            recorder.work.train(rollout, train.epochs)
            if step == train.steps:
                parts.updater.check_probabilities(rollout)
        return metrics

    if parts.ahead is None:
        return progress, updated()
    with _diverging(step):
        with parts.ahead.sampling(progress, min(step + train.staleness, train.steps), recorder) as sampled:
            metrics = updated()
        with parts.ahead.weights_of(sampled.result()):
            return score(parts.updater, sampled.result(), parts.device, recorder), metrics


@contextlib.contextmanager
def _diverging(step: int, recorder: Recorder | None = None) -> Iterator[None]:
    """Where the policy turns out to be broken, end training, or fail with what the base is like. It is the policy from
    before the updates of a step, unless the `recorder` of that step has seen one."""
    try:
        yield
    except Diverged as error:
        broken = step if recorder is not None and recorder.updates else step - 1
        if broken == 0:
            raise
        raise Ended("diverged", broken, error.what) from error


def update(updater: Updater, rollout: FlatRollout, step: int, recorder: Recorder) -> dict[str, float]:
    """All updates of a rollout with its old values: TEPO's Algorithm 1 on each mini-batch of each epoch.

    Returns metrics under verl's names. Raises Diverged on a NaN loss, RunFailed where sampler and trainer disagree.
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
    moved = recorder.moved.metrics(
        objective.clip, engine.comm, exact=objective.needs.full_kl and objective.needs.full_kl_anchor == "old"
    )
    return first | recorder.means(engine.comm) | moved | settings


def accumulate(updater: Updater, mini_batch: MiniBatch, recorder: Recorder) -> bool:
    """Add up the gradient of a mini-batch (this rank's part of it) over its micro-batches.

    False when no token of it is in the loss, on any rank. Raises Diverged on a NaN loss. The one point where an
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
