"""Checks that what a store holds is complete, as it was written, and of this version.

They run before a study plans on it, before a record is written, and by `tepo doctor --store`; nothing is ever deleted
or changed.
"""

from collections.abc import Iterable
from functools import cache

from tepo.common.errors import UserError
from tepo.evaluation.results import read_result
from tepo.evaluation.settings import asked_by
from tepo.problems.benchmarks import load_benchmark
from tepo.store.evaluation_result import SAMPLES, check_current
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import RECIPE
from tepo.studies.plan import Unit, unique


def check_store(units: Iterable[Unit]) -> None:
    """Raises UserError for the first run folder that was copied half or that another version wrote."""
    benchmark = cache(load_benchmark)  # read once for all runs, and again at the next look
    for unit in unique(units):
        if (run := unit.folder).path.is_dir():
            prompts = asked_by(unit.config)
            if unit.trains and run.manifest():  # something was trained here
                run.check_whole()
            for name in unit.benchmarks:
                folder = run.evaluation(name)
                if result := run.result(name):
                    check_current(folder, result, benchmark(name), prompts)
                    if not (folder / SAMPLES).is_file():  # from which tables are made; what is in it they check
                        fix = f"copy it again, or move {folder} away and let the study measure it anew"
                        what = "the samples behind a result are missing: half copied?"
                        raise UserError(what, where=str(folder / SAMPLES), fix=fix)


def check_contents(run: RunFolder) -> str:
    """Compare all that is known of a run's files with what they hold, reading every file of its checkpoints. Returns
    what there is to say of it. Raises UserError for the first damage."""
    manifest = run.manifest()
    if manifest and manifest.get("recipe") != RECIPE:
        return "of another version, not checked"
    run.check_whole(contents=True)
    for name in run.measured():
        if run.result(name):
            read_result(run.evaluations / name)
    return "whole" if run.checkpoints() else "without weights"
