"""The result of a finished evaluation: computed from its samples, and quoted only where both agree."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo.common.errors import UserError
from tepo.evaluation.scores import by_problem, score
from tepo.problems.benchmarks import Benchmark
from tepo.problems.grader import given_up
from tepo.store.evaluation_result import RESULT, SAMPLES, Result, load_result, read_right_answers

if TYPE_CHECKING:
    import pyarrow as pa

_ROUNDING = 1e-9


def conclude(name: str, benchmark: Benchmark | None, table: "pa.Table", grader: str, task: Mapping[str, Any]) -> Result:
    """The scores of a finished table of samples, on a benchmark of that name. benchmark: for the scores of its
    subsets."""
    import pyarrow as pa

    from tepo.evaluation.statistics.intervals import estimate_share  # takes scipy

    names, correct, _ = by_problem(table)
    accuracy = estimate_share({name: correct.mean(axis=1)[None, :]})
    subsets = {}
    for key, subset in benchmark.subsets.items() if benchmark else ():
        part = table.filter(pa.array([problem not in subset.without for problem in table["problem"].to_pylist()]))
        if part.num_rows:
            subsets[key] = score(part)
    return Result(
        benchmark=name,
        problems=len(names),
        samples=correct.shape[1],
        accuracy=accuracy.mean,
        interval=None if math.isnan(accuracy.half) else (accuracy.low, accuracy.high),
        scores=score(table),
        subsets=subsets,
        grader=grader,
        task=dict(task),
        timeouts=given_up(table["reason"].to_pylist()),
    )


def read_result(folder: Path, benchmark: Benchmark | None = None) -> Result | None:
    """The result of a finished evaluation as its samples give it, for all who quote it; None where there is none.
    benchmark: for the scores of its subsets, none without it. Raises UserError where `result.json` says something else,
    or where the samples are gone: its numbers would be anybody's."""
    from tepo.store.samples_file import read_table

    said = load_result(folder)
    if said is None:
        return None
    read_right_answers(folder)
    found = conclude(said.benchmark, benchmark, read_table(folder / SAMPLES), said.grader, said.task)
    # intervals are computed anew: an earlier version may have had another formula
    pairs: list[tuple[str, float | None, float | None]] = [("accuracy", said.accuracy, found.accuracy)]
    for prefix, ours, theirs in [
        ("", said.scores, found.scores),
        *((f"{name} ", said.subsets.get(name, {}), scores) for name, scores in found.subsets.items()),
    ]:
        pairs += [(f"{prefix}{name}", ours.get(name), theirs.get(name)) for name in sorted({*ours, *theirs})]
    for name, one, other in pairs:
        if one is None or other is None or abs(one - other) > _ROUNDING:
            what = f"the result says {name} {one}, and its samples give {other}"
            fix = f"`tepo data regrade {folder}` computes it anew, or move the folder away and measure it anew"
            raise UserError(what, where=str(folder / RESULT), fix=fix)
    return found
