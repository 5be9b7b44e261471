"""Work of `tepo train` and `tepo eval -m`. Imports torch."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from tepo.common.errors import RunFailed, UserError, unknown_name
from tepo.common.text import counted
from tepo.jobs.job import RunJob
from tepo.jobs.open_sampler import SharedEngine
from tepo.reporting.progress import say
from tepo.training.distributed.process_group import rank
from tepo.training.run import Run
from tepo_cli.cli_options import compose_run
from tepo_cli.show_result import say_trained, show_beside_base, show_results


def run_training(job: RunJob, words: Sequence[str] = ()) -> None:
    """Train, measure as asked, and say where things lie and what came out. words: that the run was asked for by."""
    finished = job.folder.finished()
    rows = job.train()
    if rows is None:
        return
    say_trained(job.folder, before=finished)
    measured = job.measure(rows)
    show_beside_base(job.run, measured.results, measured.validation, words)


def run_base(run: Run, *, quiet: bool) -> None:
    """Measure the untrained policy and show what came out. Of several ranks the first one does."""
    if rank() == 0:
        job = RunJob(run, base=True, evaluate=True, quiet=quiet)
        measured = job.measure()
        show_results(job.folder, measured.results, measured.validation)


_KINDS = ("train", "base")


def show_measured(runs: Sequence[str], store: Path | None, *, quiet: bool) -> None:
    """Measure runs or their bases on the benchmarks of their data, one after another with one loaded engine, and show
    the results; they have the same model, sampler, lengths and benchmarks.

    A run that cannot be measured, or that another process has, leaves the others: raises RunFailed at the end. Raises
    UserError where the engine does not open.
    """
    failed, before = 0, 0.0  # the first one pays for the start of the process
    asked = [compose_one(words, store) for words in runs]
    with SharedEngine() as engine:
        for run, trained in asked:
            job = RunJob(run, base=not trained, evaluate=True, quiet=quiet, cpu_before=before, engine=engine)
            try:
                if trained and not job.folder.finished():
                    fix = "`tepo train --evaluate` trains it and measures it then"
                    raise UserError("the run is not trained to its end", where=str(job.folder.path), fix=fix)
                job.check()
                measured = job.measure()
                show_results(job.folder, measured.results, measured.validation)
            except UserError as error:
                if engine.failed:
                    raise
                failed += 1
                say(f"error: run {job.folder.path.name}: {error}")
            before = time.process_time()
    if failed:
        raise RunFailed(f"{counted(failed, 'run')} of {len(runs)} not measured", fix="see the messages above")


def compose_one(words: str, store: Path | None) -> tuple[Run, bool]:
    """The run, and whether it is trained."""
    try:
        kind, *overrides = shlex.split(words) or [""]
    except ValueError as error:
        raise UserError(f"a run that cannot be read: {error}", where=words) from None
    if kind not in _KINDS:
        raise unknown_name("first word of a run", kind, _KINDS, where=words)
    return Run(compose_run(overrides, store)), kind == "train"
