"""Disk space of a plan, in words. Imported when a plan on GPUs is printed."""

from collections.abc import Sequence

from tepo.common.text import counted
from tepo.planning.disk import study_disk
from tepo.studies.plan import Unit, unique
from tepo.training.resources.run_disk import CHECKPOINTS, GB, RunDisk, run_disk
from tepo_cli.screen import say_wrapped


def show_disk(units: Sequence[Unit]) -> None:
    """A line for each model and size of checkpoint, and one for all."""
    runs: dict[tuple[str, RunDisk], int] = {}
    for unit in unique(units):
        if unit.row.objective is not None:
            key = (unit.config.model.name, run_disk(unit.config))
            runs[key] = runs.get(key, 0) + 1
    for (name, run), count in runs.items():
        say_wrapped(
            f"disk, {name}: {_gb(run.peak)} for a run while it trains ({CHECKPOINTS} checkpoints of "
            f"{_gb(run.checkpoint)}, one of them being written), {_gb(run.weights)} of weights when it has finished; "
            f"{counted(count, 'run')}"
        )
    if runs:
        every = study_disk(units)
        say_wrapped(
            f"disk in all: {_gb(every.kept)} stay; at most {_gb(every.one)} on the way with one run at a time, "
            f"{_gb(every.all)} with all at once"
        )


def _gb(size: float) -> str:
    return f"{size / GB:,.0f} GB" if size >= 10 * GB else f"{size / GB:.1f} GB"
