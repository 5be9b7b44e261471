"""Work of `tepo measure`. Imported when it runs."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from tepo.common.errors import RunFailed, UserError, unknown_name
from tepo.common.text import counted
from tepo.config.run_config import RunConfig
from tepo.jobs.measure import After, measure_run
from tepo.jobs.shared_engine import SharedEngine
from tepo.reporting.progress import say
from tepo.store.run_folder import RunFolder
from tepo_cli.compose_run import compose_run
from tepo_cli.train_run import show_results

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
            run = RunFolder.of(config) if trained else RunFolder.of_base(config)
            after = After(evaluate=True, cpu_before=before, engine=engine)
            try:
                if trained and not run.finished():
                    fix = "`tepo train --evaluate` trains it and measures it then"
                    raise UserError("the run is not trained to its end", where=str(run.path), fix=fix)
                after.check(config)
                show_results(run, measure_run(config, [] if trained else None, after, quiet=quiet))
            except UserError as error:
                if engine.failed:
                    raise
                failed += 1
                say(f"error: run {run.path.name}: {error}")
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
