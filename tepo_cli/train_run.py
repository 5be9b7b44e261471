"""Work of `tepo train` and `tepo eval -m`. Imports torch."""

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tepo.common.errors import RunFailed, UserError, unknown_name
from tepo.common.text import counted
from tepo.config.run_config import RunConfig
from tepo.jobs.job import Measured, RunJob
from tepo.jobs.measure import stored_base
from tepo.jobs.open_sampler import SharedEngine
from tepo.reporting.progress import say
from tepo.store.evaluation_result import Result
from tepo.store.run_folder import RunFolder
from tepo.training.distributed.process_group import rank
from tepo_cli.cli_options import compose_run
from tepo_cli.screen import show


def run_training(job: RunJob, words: Sequence[str] = ()) -> None:
    """Train, measure as asked, and say where things lie and what came out. words: that the run was asked for by."""
    finished = job.run.finished()
    rows = job.train()
    if rows is None:
        return
    run, ending, best = job.run, job.run.ending(), job.run.best()
    steps, on = counted(len(run.metrics()), "step"), ", ".join(run.measured())
    said = f"finished already: {run.path}, {steps}, {f'measured on {on}' if on else 'not measured yet'}"
    say(said if finished else f"run {run.path.name}: {steps}, {run.path}")
    if ending is not None:
        weights = f"those after {best or f'step {ending.step - 1}'}" if ending.step > 1 else "those it started from"
        say(f"training ended with {ending}: {ending.why}. The run counts as finished; its weights are {weights}")
        if run.examples_file.is_file():
            say(f"a few of its responses: {run.examples_file}")
    elif best is not None:
        say(f"its weights are those after {best}")
    measured = job.measure(rows)
    names = [result.benchmark for result in measured.results]
    base = stored_base(job.config, names)
    show_results(run, measured, base)
    if len(base) < len(names):
        lacking = counted(len(names) - len(base), "benchmark")
        model = shlex.quote(shlex.join(["base", *words]))
        say(f"the base is not measured on {lacking}, this measures it: tepo eval -m {model}")


def run_base(config: RunConfig, *, quiet: bool) -> None:
    """Measure the untrained policy and show what came out. Of several ranks the first one does."""
    if rank() == 0:
        job = RunJob(config, base=True, evaluate=True, quiet=quiet)
        show_results(job.run, job.measure())


def show_results(run: RunFolder, measured: Measured, base: Mapping[str, Result] = MappingProxyType({})) -> None:
    """A table of accuracies with their intervals, that of the base beside them where it is known, and the share of
    right responses to validation problems."""
    if measured.results or measured.validation is not None:
        heads, rows = ("benchmark", "accuracy %", "95%", *(["base %"] if base else [])), list[tuple[str, ...]]()
        for result in measured.results:
            ends = "–" if result.interval is None else " – ".join(f"{100 * end:.1f}" for end in result.interval)
            known = base.get(result.benchmark)
            beside = [f"{100 * known.accuracy:.1f}" if known else "–"] if base else []
            rows.append((result.benchmark, f"{100 * result.accuracy:.1f}", ends, *beside))
        if measured.validation is not None:
            rows.append(("validation problems", f"{100 * measured.validation:.1f}", *"––"[: len(heads) - 2]))
        show(heads, rows, run.path.name)


_KINDS = ("train", "base")


def show_measured(runs: Sequence[str], store: Path | None, *, quiet: bool) -> None:
    """Measure runs or their bases on the benchmarks of their data, one after another with one loaded engine, and show
    the results; they have the same model, sampler, lengths and benchmarks.

    A run that cannot be measured, or that another process has, leaves the others: raises RunFailed at the end. Raises
    UserError where the engine does not open.
    """
    failed, before = 0, 0.0  # the first one pays for the start of the process
    configs = [compose_one(words, store) for words in runs]
    with SharedEngine() as engine:
        for config, trained in configs:
            job = RunJob(config, base=not trained, evaluate=True, quiet=quiet, cpu_before=before, engine=engine)
            try:
                if trained and not job.run.finished():
                    fix = "`tepo train --evaluate` trains it and measures it then"
                    raise UserError("the run is not trained to its end", where=str(job.run.path), fix=fix)
                job.check()
                show_results(job.run, job.measure())
            except UserError as error:
                if engine.failed:
                    raise
                failed += 1
                say(f"error: run {job.run.path.name}: {error}")
            before = time.process_time()
    if failed:
        raise RunFailed(f"{counted(failed, 'run')} of {len(runs)} not measured", fix="see the messages above")


def compose_one(words: str, store: Path | None) -> tuple[RunConfig, bool]:
    """The configuration, and whether it is trained."""
    try:
        kind, *overrides = shlex.split(words) or [""]
    except ValueError as error:
        raise UserError(f"a run that cannot be read: {error}", where=words) from None
    if kind not in _KINDS:
        raise unknown_name("first word of a run", kind, _KINDS, where=words)
    return compose_run(overrides, store), kind == "train"
