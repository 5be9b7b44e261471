"""Results of measuring: a finished evaluation (`result.json`) with its counts of right samples, and a validation."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tepo.common.errors import UserError
from tepo.common.files import TEMPORARY, parse_json, remove_leftovers, write_json
from tepo.problems.grader.pool import OUT_OF_BUDGET

if TYPE_CHECKING:
    from tepo.problems.benchmarks import Benchmark

RESULT = "result.json"
AVERAGE = "val-core/average"  # the metric of a validation that chooses
RIGHT = "/right@"  # in the names of counts a problem, before the number of responses to each
TASK = "task.json"  # what is evaluated, from the first part on
SAMPLES = "samples.parquet"  # its rows, and parts of them while it runs: `tepo.store.samples_file`
PARTS = "parts"
FORMAT = 1
_AGAIN = "move the folder away and evaluate again"


@dataclass(frozen=True)
class Result:
    """Content of `result.json`. Scores are shares in 0..1; `interval` is the 95% interval of avg@k, clustered by
    problem; None for too few problems.

    `subsets` holds the scores over each of the benchmark's subsets; `task` is what was evaluated and how (the identity
    that a resumed evaluation must share, with the problems' content hash); `grader` is the fingerprint behind the
    verdicts; `timeouts` are the answers that ran out of the grader's budget and count as wrong.
    """

    benchmark: str
    problems: int
    samples: int
    accuracy: float
    interval: tuple[float, float] | None
    scores: dict[str, float]
    subsets: dict[str, dict[str, float]]
    grader: str
    task: dict[str, Any]
    timeouts: int = 0
    format: int = FORMAT


@dataclass(frozen=True)
class Validated:
    """Answers of a run's last weights to its validation problems. share: of right responses, each benchmark counted
    once. problems: hash of the problems, and of how they were asked. right: of the n responses to each problem, by
    `val-aux/NAME/right@n`; empty where an earlier version kept the share alone."""

    problems: str
    share: float
    right: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class RightAnswers:
    """Counts of right samples, from which scores, intervals and comparisons are made. problems: ids, sorted. right: of
    the `samples` of each problem."""

    problems: tuple[str, ...]
    right: tuple[int, ...]
    samples: int


def read_validation(file: Path) -> tuple[Validated, str | None] | None:
    """A run's `validation.json`, and the weights that it names; None where there is none. Raises UserError where it is
    damaged."""
    try:
        record = parse_json(file.read_bytes())
        metrics, weights = record["metrics"], record.get("weights")  # an earlier version does not say which weights
        right = {name: tuple(map(int, counts)) for name, counts in metrics.items() if RIGHT in name}
        share = float(metrics[AVERAGE])
        counted = [sum(counts) / (len(counts) * int(name.partition(RIGHT)[2])) for name, counts in right.items()]
        if not 0 <= share <= 1 or (counted and abs(fmean(counted) - share) > 1e-9):
            raise ValueError
        return Validated(str(record["problems"]), share, right), weights if isinstance(weights, str) else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, ArithmeticError):
        raise validation_damage(file) from None


def validation_damage(file: Path) -> UserError:
    """The error for a validation that is not what it says."""
    what = "the validation is damaged, edited, or of another run: half copied?"
    return UserError(what, where=str(file), fix="move the file away: the command that wrote it measures it anew")


def has_result(folder: Path) -> bool:
    """Tell whether an evaluation is finished."""
    return os.path.exists(folder / RESULT)


def save_result(folder: Path, result: Result) -> None:
    """Write the result: from now on the evaluation is finished."""
    write_json(folder / RESULT, asdict(result))


def remove_parts(folder: Path) -> None:
    """Delete the parts of a finished evaluation, whose rows are in one file; also those, and files half written, that a
    kill after its end has left. Needs no lock: who would read them reads the result."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    remove_leftovers(folder, TEMPORARY)


def load_result(folder: Path) -> Result | None:
    """The result of a finished evaluation, or None. Raises UserError for a file this version cannot read."""
    path = folder / RESULT
    if not path.is_file():
        return None
    try:
        value = parse_json(path.read_bytes())
        result = Result(
            **{**value, "interval": None if value["interval"] is None else tuple(map(float, value["interval"]))}
        )
        complete = _complete(result)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise UserError(f"not a result of this version: {error}", where=str(path), fix=_AGAIN) from None
    if result.format != FORMAT:
        raise UserError(f"result of format {result.format}, this version reads {FORMAT}", where=str(path), fix=_AGAIN)
    if not complete:
        what = "the result is damaged: scores, counts or the task are missing, or no such numbers can be"
        raise UserError(what, where=str(path), fix=_AGAIN)
    return result


def _complete(result: Result) -> bool:
    """Tell whether everything that tables and commands read is there, with the right type, and can be true."""
    k, every = result.samples, (result.scores, *result.subsets.values())
    score_names = {"truncated", "mean_tokens", f"avg@{k}", *([f"pass@{k}", f"maj@{k}"] if k > 1 else [])}
    numbers = [(name, value) for scores in every for name, value in scores.items()]
    numbers += [("", result.accuracy), *(("", end) for end in result.interval or ())]
    return (
        all(type(count) is int and count > 0 for count in (result.problems, k))
        and all(isinstance(value, int | float) for _, value in numbers)
        and all(0 <= value <= (1e15 if name == "mean_tokens" else 1 + 1e-9) for name, value in numbers)  # NaN is not
        and isinstance(result.grader, str)
        and type(result.timeouts) is int
        and 0 <= result.timeouts <= result.problems * k
        and isinstance(result.task, dict)
        and isinstance(result.benchmark, str)
        and all(score_names <= set(scores) for scores in every)
    )


def read_right_answers(folder: Path) -> RightAnswers | None:
    """Counts of a finished evaluation; None where there is none. Raises UserError when the samples are not what the
    result was computed from: nobody should believe such a table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tepo.common.parquet import read_parquet

    result = load_result(folder)
    if result is None:
        return None
    try:
        table = read_parquet(folder / SAMPLES, ["problem", "correct", "reason", "grader"])
        counted = table.group_by("problem").aggregate([("correct", "sum"), ("correct", "count")]).sort_by("problem")
        problems, right, samples = (column.to_pylist() for column in counted.columns)
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:  # pyarrow's own are among them
        what = f"the samples cannot be read: {str(error).splitlines()[0]}"
        if isinstance(error, FileNotFoundError):
            what = "the samples behind the result are gone, so nobody can say that its numbers are true"
        fix = f"move {folder} away and measure it anew"
        raise UserError(what, where=str(folder / SAMPLES), fix=fix) from None
    graders, given_up = (
        pc.unique(table["grader"]).to_pylist(),
        pc.sum(pc.is_in(table["reason"], pa.array(OUT_OF_BUDGET))),
    )
    complete = len(problems) == result.problems and set(samples) == {result.samples}  # verdicts of null do not count
    complete = complete and graders == [result.grader] and result.timeouts == (given_up.as_py() or 0)
    if not complete or abs(sum(right) / (result.problems * result.samples) - result.accuracy) > 1e-9:
        what = "the samples are not those behind the result: problems, verdicts or the grader differ"
        fix = f"`tepo data regrade {folder}`, or move it away and measure it anew"
        raise UserError(what, where=str(folder / SAMPLES), fix=fix)
    return RightAnswers(tuple(problems), tuple(right), result.samples)


def outdated(task: Mapping[str, Any], benchmark: "Benchmark", prompts: Mapping[str, Any]) -> str:
    """The reason that a result of this task must not stand in a table: measured on other problems, by another protocol,
    or (`prompts`: wrap, thinking, system) with other prompts around them, or graded by other settings. Empty where it
    may. What the task does not say is not held against it, but for a system prompt: it has none then."""
    asked = {"system": "", **task}
    different = [
        f"{key} {asked[key]!r}, not {value!r}" if key == "system" else f"{key} {asked[key]}, not {value}"
        for key, value in prompts.items()
        if asked.get(key, value) != value
    ]
    if task.get("fingerprint", benchmark.fingerprint) != benchmark.fingerprint:
        return "measured under another definition of the benchmark"
    if different:
        return f"measured with {', '.join(different)}"
    if task.get("grading", benchmark.grading) != benchmark.grading:
        return "graded under other settings of the benchmark (grader, tolerances)"
    return ""


def check_current(folder: Path, result: Result, benchmark: "Benchmark", prompts: Mapping[str, Any]) -> None:
    """Raise UserError for a result that is `outdated`."""
    if why := outdated(result.task, benchmark, prompts):
        ways = f"undo the change, or move {folder} away and let it be measured anew"
        fix = f"`tepo data regrade {folder}`, or undo the change" if why.startswith("graded") else ways
        raise UserError(f"{benchmark.name} was {why}", where=str(folder), fix=fix)
