"""Checks that what a store holds is complete, as it was written, and of this version.

They run before a study plans on it, before a record is written, and by `tepo doctor --store`; nothing is ever deleted
or changed.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tepo.common.errors import UserError
from tepo.evaluation.results import read_result
from tepo.problems.benchmarks import load_benchmark
from tepo.store.evaluation_result import SAMPLES, Result, check_current
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import RECIPE
from tepo.studies.plan import Unit, unique


def check_store(units: Iterable[Unit]) -> None:
    """Raises UserError for the first run folder that was copied half or that another version wrote."""
    benchmark = cache(load_benchmark)  # read once for all runs, and again at the next look
    for unit in unique(units):
        if unit.folder.is_dir():
            if unit.row.objective is not None and unit.in_store.manifest():  # something was trained here
                unit.in_store.check_whole()
            prompts = {"wrap": unit.config.model.wrap, "thinking": unit.config.model.thinking}
            for name in unit.benchmarks:
                folder = unit.in_store.evaluation(name)
                if result := unit.in_store.result(name):
                    check_current(folder, result, benchmark(name), prompts)
                    _check_samples(folder, result)


def check_contents(run: RunFolder) -> str:
    """Compare all that is known of a run's files with what they hold, reading every file of its checkpoints. Returns
    what there is to say of it. Raises UserError for the first damage."""
    manifest = run.manifest()
    if manifest and manifest.get("recipe") != RECIPE:
        return "of another version, not checked"
    run.check_whole(contents=True)
    for name in run.measured():
        if result := run.result(name):
            _check_samples(run.evaluations / name, result)
            read_result(run.evaluations / name)
    return "whole" if run.checkpoints() else "without weights"


def _check_samples(folder: Path, result: Result) -> None:
    """A result needs its samples, because tables are made from them."""
    import pyarrow.parquet as pq

    again = f"copy it again, or move {folder} away and let the study measure it anew"
    try:
        rows = pq.read_metadata(folder / SAMPLES).num_rows
    except Exception as error:  # a missing file or, in pyarrow's own classes, a damaged one
        fault = "are missing" if isinstance(error, FileNotFoundError) else "cannot be read"
        what = f"the samples behind a result {fault}: copied half?"
        raise UserError(what, where=str(folder / SAMPLES), fix=again) from None
    if rows != (counts := result.problems * result.samples):
        what = f"{rows} samples lie there, the result counts {counts}"
        raise UserError(what, where=str(folder / SAMPLES), fix=again)
