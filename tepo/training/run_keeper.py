"""Everything around the algorithm of `loop`: the run's lock and manifest, signs of life, requests to stop, checkpoints,
and what a step or an early end leaves behind."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from tepo.common import signals
from tepo.common.errors import UserError
from tepo.common.files import file_digest, remove_folder, write_atomic
from tepo.common.provenance import add_sampler, recorded
from tepo.store.early_stop import Best, EarlyStop, Ending
from tepo.store.evaluation_result import AVERAGE
from tepo.store.run_folder import AGAIN, RunFolder
from tepo.training.distributed import process_group
from tepo.training.distributed.liveness import ACTIVITY, Heartbeat
from tepo.training.metrics.metrics_log import MetricsLog, Report
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.metrics.throughput import step_figures
from tepo.training.metrics.token_dump import write_token_dump
from tepo.training.rollout.collector import NoMixedGroups
from tepo.training.rollout.prompt_stream import keep_first_prompt
from tepo.training.rollout_batch import FlatRollout
from tepo.training.setup import PreparedRun, TrainState, open_state
from tepo.training.validation import Measured


@dataclass
class Outcome:
    """How a run came out, for its manifest."""

    over: bool = False  # another process finished it before this one had its lock
    ending: Ending | None = None  # why it ended early


@contextlib.contextmanager
def kept(prepared: PreparedRun) -> Iterator[Outcome]:
    """Hold the run's lock, keep its manifest true however training ends, and give the other ranks signs of life. The
    first rank alone locks and writes."""
    folder, outcome = prepared.run.folder, Outcome()

    def given_up(error: str) -> None:  # from beside the training, which cannot
        if process_group.rank() == 0:
            folder.mark("failed", error=error)

    with contextlib.ExitStack() as stack:
        if process_group.rank() == 0:
            store_is_new = not folder.path.parent.exists()
            stack.enter_context(folder.lock())
            stack.enter_context(_nothing_left_where_refused(folder, store_is_new))
            outcome.over = folder.finished()
            if not outcome.over:
                stack.enter_context(_manifest(prepared, outcome))
        if not outcome.over:
            ranks = process_group.rank(), process_group.world_size()
            stack.enter_context(Heartbeat(folder.path / "ranks", *ranks, given_up))
            stack.enter_context(process_group.lost_ranks())
        yield outcome


@contextlib.contextmanager
def _nothing_left_where_refused(folder: RunFolder, store_is_new: bool) -> Iterator[None]:
    """Remove the folder of a run that is refused before its first step, but one that was there or holds a study's
    log."""
    earlier_files = folder.started() or folder.log.exists()
    try:
        yield
    except UserError as error:
        if error.exit_code == 2 and not (earlier_files or folder.metrics()):
            remove_folder(folder.path)
            if store_is_new:
                with contextlib.suppress(OSError):  # where others began a run in it meanwhile
                    folder.path.parent.rmdir()
        raise


@contextlib.contextmanager
def _manifest(prepared: PreparedRun, outcome: Outcome) -> Iterator[None]:
    run, folder = prepared.run, prepared.run.folder
    if folder.checkpoints() and not folder.manifest():
        what = "checkpoints lie there, and no manifest says how far they came: half copied?"
        raise UserError(what, where=str(folder.path), fix=AGAIN)
    if folder.config_file.exists():
        folder.check_config()
    folder.create((run.asked or run).config, run.identity)
    folder.mark("running")
    try:
        with recorded(folder.path, "train", prepared.reasons):
            yield
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt | signals.Stopped) else "failed"
        with contextlib.suppress(Exception):  # a full disk may be the very error
            folder.mark(status, error=str(error) or type(error).__name__)
        raise
    last, facts = run.config.train.steps, dict[str, Any]()
    if outcome.ending is not None:
        last, facts["ending"] = outcome.ending.step - 1, asdict(outcome.ending)
    if best := folder.best_up_to(last):
        facts["best"] = asdict(best)
    facts["tokens"] = folder.progress(last).get("tokens", {})
    folder.mark("finished", steps=last, **facts)
    folder.keep_weights()


@contextlib.contextmanager
def opened(prepared: PreparedRun, report: Report) -> Iterator[TrainState]:
    """Open a run at its newest checkpoint, with its log on the first rank. A request to stop is heard between steps,
    and leaves a checkpoint of the last finished one: what was saved is never more than one rollout behind."""
    run, folder = prepared.run, prepared.run.folder
    with open_state(run, prepared.prompts) as state:
        prepared.check_unchanged()
        ACTIVITY.spent.clear()  # of an earlier run in this process
        if state.first:
            add_sampler(folder.path, state.sampler.parts)
            state.log = MetricsLog(run.config, folder, report)
            keep_first_prompt(state.collector.stream, folder)
        with state.log or contextlib.nullcontext(), signals.deferred(process_group.check_neighbours):
            if state.log:
                state.log.resume(state.progress.step)
            try:
                yield state
            except signals.Stopped:
                if state.progress.step:
                    state.save_unsaved()
                state.saver.finish()  # all ranks have agreed to stop
                raise


def finish_step(state: TrainState, rollout: FlatRollout, metrics: StepMetrics, figures: Measured) -> None:
    """Write what a step leaves: tokens, metrics, a checkpoint where one is due."""
    config, step, log = state.config, rollout.step, state.log
    best, accuracy = state.progress.best, figures.get(AVERAGE)
    if config.train.keep_best and accuracy is not None and (best is None or accuracy > best.accuracy):
        best = Best(step, accuracy)
    tokens = dict(state.progress.tokens)
    if metrics.keep_tokens:
        file = state.run.folder.tokens(step)
        write_token_dump(file, config.objective.get("name", ""), rollout, metrics.tokens, state.policy.tokenizer)
        tokens[file.name] = file_digest(file)
    state.progress = replace(state.rollouts.progress(step, best), tokens=tokens)
    row = {
        "training/global_step": step,
        "training/prompts": state.progress.prompts,
        "training/responses": float(state.progress.prompts * config.train.samples_per_prompt),
        "perf/trained_tokens": float(rollout.lengths.sum()),
        **rollout.metrics,
        **figures,
        **step_figures(
            metrics.timings(), metrics.work, state.engine.comm, state.device, config.model, state.policy.model.config
        ),
    }
    if log:
        log.write(row)
    if (
        step == config.train.steps
        or (best and step == best.step)
        or state.saver.is_due(step, config.train.checkpoint_every)
    ):
        state.save(over=step == config.train.steps)
    else:
        state.saver.check()
    if log:
        log.report(step, row)


def stop_early(state: TrainState, stop: EarlyStop) -> Ending:
    """See that the newest checkpoint is of the weights that count, or an earlier one where they have diverged since."""
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
            write_atomic(state.run.folder.examples_file, lines)
    if stop.ending.kind != "diverged":
        state.save_unsaved()
        return stop.ending
    state.saver.finish()
    if state.first:
        state.run.folder.forget(stop.ending.step - 1)
    if state.engine.comm is not None:
        state.engine.comm.barrier()
    return stop.ending
