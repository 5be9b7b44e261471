"""Grading stored responses again, after the grader changed."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tepo.common.errors import UserError
from tepo.common.files import write_json
from tepo.common.provenance import recorded
from tepo.evaluation.responses import grade_again
from tepo.evaluation.results import conclude
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader import Grader
from tepo.store.evaluation_result import RESULT, SAMPLES, TASK, load_result, save_result
from tepo.store.find_run import runs
from tepo.store.run_folder import RunFolder
from tepo.store.samples_file import read_table, table_of, write_table


class Flip(NamedTuple):
    """A sample whose verdict changed; `correct` and `reason` are the new ones."""

    problem: str
    sample: int
    gold: str
    extracted: str | None
    correct: bool
    reason: str
    reason_before: str


@dataclass(frozen=True)
class Regrade:
    """Changes that grading an evaluation again made. Accuracies are shares in 0..1; timeouts as in Result."""

    benchmark: str
    samples: int
    flips: list[Flip]
    before: float
    after: float
    timeouts: int


def evaluations(folder: Path) -> list[Path]:
    """Finished evaluations at or below a folder (an evaluation, a run, a store).
    Raises UserError when there are none, and where one lies in a run that links lead out of."""
    above = (RunFolder(path) for path in (folder, *folder.absolute().parents[:2]))
    enclosing_run = next((run for run in above if run.started()), None)
    for run in runs(folder) if enclosing_run is None else [enclosing_run]:  # all of them before the first is graded
        run.opened  # noqa: B018
    result_files = folder.rglob(RESULT) if folder.is_dir() else ()
    finished = sorted(path.parent for path in result_files if (path.parent / SAMPLES).is_file())
    for path in finished:
        RunFolder.of_evaluation(path).opened  # noqa: B018
    if not finished:
        fix = "give the folder of a run, or of one of its evaluations"
        raise UserError("no finished evaluation there", where=str(folder), fix=fix)
    return finished


def regrade(folder: Path, grader: Grader, *, write: bool = True) -> Regrade:
    """Judge every stored response of an evaluation again and, unless `write` is false, store verdicts and scores.
    Responses, golds and problems are those on disk; nothing is sampled. Raises UserError for a folder that holds no
    finished evaluation."""
    result = load_result(folder)
    if result is None:
        raise UserError("no finished evaluation there", where=str(folder), fix="finish it with `tepo eval`")
    rows = read_table(folder / SAMPLES).to_pylist()
    benchmark = load_benchmark(result.benchmark)
    before = [(row["correct"], row["reason"]) for row in rows]
    grade_again(benchmark, grader, rows)
    flips = [
        Flip(row["problem"], row["sample"], row["gold"], row["extracted"], row["correct"], row["reason"], reason)
        for row, (correct, reason) in zip(rows, before, strict=True)
        if row["correct"] != correct
    ]
    table = table_of(rows)
    task = result.task | {"grading": benchmark.grading}
    after = conclude(result.benchmark, benchmark, table, grader.fingerprint, task)
    if write:
        changed = bool(flips) or after != result  # the same grader again leaves everything as it is
        with recorded(folder, "regrade") if changed else nullcontext():
            write_json(folder / TASK, task)
            write_table(folder / SAMPLES, table)
            save_result(folder, after)
    return Regrade(result.benchmark, len(rows), flips, result.accuracy, after.accuracy, after.timeouts)
