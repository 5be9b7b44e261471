"""Disk space of the runs of a plan."""

from collections.abc import Iterable
from dataclasses import dataclass

from tepo.studies.plan import Unit, unique
from tepo.training.resources.run_disk import run_disk


@dataclass(frozen=True, slots=True)
class StudyDisk:
    """Bytes of all runs of a plan. kept: when all have finished. one: at most, when they are trained one after another.
    all: at most, when all are trained at once."""

    kept: float
    one: float
    all: float


def study_disk(units: Iterable[Unit]) -> StudyDisk:
    """Disk space of the distinct runs that train."""
    runs = [run_disk(unit.config) for unit in unique(units) if unit.row.objective is not None]
    kept = sum(run.weights for run in runs)
    one = max((run.peak - run.weights for run in runs), default=0.0)
    return StudyDisk(kept, kept + one, sum(run.peak for run in runs))
