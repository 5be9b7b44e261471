"""The result of a finished evaluation: computed from its samples, and quoted only where both agree."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo.common.errors import UserError
from tepo.evaluation.scores import by_problem, score
from tepo.problems.benchmarks import Benchmark
from tepo.store.evaluation_result import RESULT, SAMPLES, Result, load_result, read_right_answers

if TYPE_CHECKING:
    import pyarrow as pa

_ROUNDING = 1e-9


def conclude(name: str, benchmark: Benchmark | None, table: "pa.Table", grader: str, task: Mapping[str, Any]) -> Result:
    """The scores of a finished table of samples, on a benchmark of that name. benchmark: for the scores of its
    subsets."""
    import pyarrow as pa

    from tepo.evaluation.statistics.intervals import estimate_share  # takes scipy
    from tepo.problems.grader import given_up

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

    stored_result = load_result(folder)
    if stored_result is None:
        return None
    read_right_answers(folder)
    computed_result = conclude(
        stored_result.benchmark, benchmark, read_table(folder / SAMPLES), stored_result.grader, stored_result.task
    )
    # intervals are computed anew: an earlier version may have had another formula
    pairs: list[tuple[str, float | None, float | None]] = [
        ("accuracy", stored_result.accuracy, computed_result.accuracy)
    ]
    for prefix, stored_scores, computed_scores in [
        ("", stored_result.scores, computed_result.scores),
        *(
            (f"{name} ", stored_result.subsets.get(name, {}), scores)
            for name, scores in computed_result.subsets.items()
        ),
    ]:
        pairs += [
            (f"{prefix}{name}", stored_scores.get(name), computed_scores.get(name))
            for name in sorted({*stored_scores, *computed_scores})
        ]
    for name, stored_score, computed_score in pairs:
        if stored_score is None or computed_score is None or abs(stored_score - computed_score) > _ROUNDING:
            what = f"the result says {name} {stored_score}, and its samples give {computed_score}"
            fix = f"`tepo data regrade {folder}` computes it anew, or move the folder away and measure it anew"
            raise UserError(what, where=str(folder / RESULT), fix=fix)
    return computed_result
