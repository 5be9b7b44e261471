"""Running a benchmark: sample, grade, one row a sample on disk, scores.
Killed at any moment, it goes on where it was."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tepo.errors import UserError
from tepo.evaluation.intervals import estimate_share
from tepo.evaluation.responses import Tools, judge, sample_rows
from tepo.evaluation.result import TASK, Result, load_result, save_result
from tepo.evaluation.rows import SAMPLES, part_path, read_part, remove_parts, table_of, write_table
from tepo.evaluation.scores import by_problem, score
from tepo.evaluation.settings import Settings
from tepo.files import write_json
from tepo.problems.benchmarks import Benchmark
from tepo.problems.grader import Grader, given_up
from tepo.problems.hashes import set_hash
from tepo.provenance import recorded


def evaluate(
    benchmark: Benchmark,
    tools: Tools,
    folder: Path,
    settings: Settings,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Result:
    """Evaluate a policy on a benchmark into `folder`, or finish what an earlier call began there,
    or return what is finished.

    progress: called with (rows done, rows in all) at the start and after each part. Raises UserError when the folder
    holds another evaluation.
    """
    problems = benchmark.load_problems()[: settings.limit]
    # The slices are part of the task: a resumed evaluation must batch as the first one did to give the same numbers.
    task = {
        "benchmark": benchmark.name,
        "fingerprint": benchmark.fingerprint,
        "grading": benchmark.grading,
        "content_hash": set_hash(problems),
        "seed": settings.seed,
        "limit": settings.limit,
        "policy": dict(settings.policy),
        "wrap": settings.wrap,
        "thinking": settings.thinking,
        "rows_per_part": settings.rows_per_part,
    }
    finished = _claim(folder, task)
    if finished:
        return finished
    with recorded(folder, "evaluate"):
        step, rows = max(1, settings.rows_per_part // benchmark.samples), len(problems) * benchmark.samples
        progress(0, rows)
        parts = []
        for index, start in enumerate(range(0, len(problems), step)):
            chunk = problems[start : start + step]
            part = read_part(folder, index, len(chunk) * benchmark.samples)
            if part is None:
                part = table_of(sample_rows(benchmark, chunk, tools, settings))
                write_table(part_path(folder, index), part)
            parts.append(part)
            progress(min(start + step, len(problems)) * benchmark.samples, rows)
        table = refresh_verdicts(benchmark, pa.concat_tables(parts), tools.grader)
        result = conclude(benchmark, table, tools.grader.fingerprint, task)
        write_table(folder / SAMPLES, table)
        save_result(folder, result)
        remove_parts(folder)
    return result


def conclude(benchmark: Benchmark, table: pa.Table, grader: str, task: Mapping[str, Any]) -> Result:
    """The scores of a finished table of samples."""
    names, correct, _ = by_problem(table)
    accuracy = estimate_share({benchmark.name: correct.mean(axis=1)[None, :]})
    subsets = {}
    for name, subset in benchmark.subsets.items():
        part = table.filter(pa.array([problem not in subset.without for problem in table["problem"].to_pylist()]))
        if part.num_rows:
            subsets[name] = score(part)
    interval = None if math.isnan(accuracy.half) else (accuracy.low, accuracy.high)
    return Result(
        benchmark=benchmark.name,
        problems=len(names),
        samples=correct.shape[1],
        accuracy=accuracy.mean,
        interval=interval,
        scores=score(table),
        subsets=subsets,
        grader=grader,
        task=dict(task),
        timeouts=given_up(table["reason"].to_pylist()),
    )


def refresh_verdicts(benchmark: Benchmark, table: pa.Table, grader: Grader) -> pa.Table:
    """The table with every row judged by this grader; rows that carry its fingerprint already are left alone."""
    rows = table.to_pylist()
    stale = [row for row in rows if row["grader"] != grader.fingerprint]
    if not stale:
        return table
    verdicts = judge(
        benchmark, grader, [row["problem"] for row in stale], [(row["gold"], row["response"]) for row in stale]
    )
    for row, verdict in zip(stale, verdicts, strict=True):
        row.update(
            extracted=verdict.extracted, correct=verdict.correct, reason=verdict.reason, grader=grader.fingerprint
        )
    return table_of(rows)


def _claim(folder: Path, task: Mapping[str, Any]) -> Result | None:
    """Make the folder this task's own.
    Returns the result if it is finished; raises UserError if it belongs to another task."""
    path = folder / TASK
    if path.is_file():
        try:
            begun = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            begun = None
        if not isinstance(begun, dict):
            raise UserError("the file is damaged", where=str(path), fix="delete the folder and evaluate again")
        wanted = json.loads(json.dumps(task))
        different = [key for key in wanted if begun.get(key) != wanted[key]]
        if different:
            said = "; ".join(f"{key} {begun.get(key)!r} there, {wanted[key]!r} asked for" for key in different)
            graded = different == ["grading"] and (folder / SAMPLES).is_file()
            fix = f"`tepo regrade {folder}`" if graded else "choose another folder, or delete this one"
            raise UserError(f"the folder holds another evaluation: {said}", where=str(folder), fix=fix)
    result = load_result(folder) if (folder / SAMPLES).is_file() else None
    if result is None:
        write_json(path, dict(task))
    return result
