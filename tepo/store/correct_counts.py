"""Counts of right samples for each problem: all that scores, intervals and comparisons are made from."""

from dataclasses import dataclass
from pathlib import Path

from tepo.common.errors import UserError
from tepo.store.evaluation_result import load_result
from tepo.store.samples_file import SAMPLES


@dataclass(frozen=True)
class RightAnswers:
    """problems: ids, sorted. right: of the `samples` of each problem."""

    problems: tuple[str, ...]
    right: tuple[int, ...]
    samples: int


def read_right_answers(folder: Path) -> RightAnswers | None:
    """Counts of a finished evaluation; None where there is none.

    Raises UserError when the samples are not what the result was computed from: nobody should believe such a table.
    """
    import pyarrow.parquet as pq

    result = load_result(folder)
    if result is None:
        return None
    try:
        table = pq.read_table(folder / SAMPLES, columns=["problem", "correct"])
        counted = table.group_by("problem").aggregate([("correct", "sum"), ("correct", "count")]).sort_by("problem")
        problems, right, samples = (column.to_pylist() for column in counted.columns)
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:  # pyarrow's own are among them
        raise UserError(
            f"the samples cannot be read: {str(error).splitlines()[0]}",
            where=str(folder / SAMPLES),
            fix=f"move {folder} away and measure it anew",
        ) from None
    complete = len(problems) == result.problems and set(samples) == {result.samples}  # verdicts of null do not count
    if not complete or abs(sum(right) / (result.problems * result.samples) - result.accuracy) > 1e-9:
        raise UserError(
            "the samples are not those behind the result: problems or verdicts differ",
            where=str(folder / SAMPLES),
            fix=f"`tepo regrade {folder}`, or move it away and measure it anew",
        )
    return RightAnswers(tuple(problems), tuple(right), result.samples)
