"""Work of `tepo measure`. Imported when it runs."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from tepo.common.errors import RunFailed, UserError, unknown_name
from tepo.common.text import counted
from tepo.config.run_config import RunConfig
from tepo.jobs.measure_runs import measure_runs
from tepo.reporting.progress import say
from tepo_cli.compose_run import compose_run
from tepo_cli.train_run import show_results

_KINDS = ("train", "base")


def show_measured(runs: Sequence[str], store: Path | None, *, quiet: bool) -> None:
    """Measure runs and show what came out. Raises RunFailed at the end where some were not measured."""
    failed = 0
    for run, measured in measure_runs([compose_one(words, store) for words in runs], quiet=quiet):
        if isinstance(measured, UserError):
            failed += 1
            say(f"error: run {run.path.name}: {measured}")
        else:
            show_results(run, measured)
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
