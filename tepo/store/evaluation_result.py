"""Results of measuring: a finished evaluation (`result.json`), and a validation."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError
from tepo.common.files import parse_json, write_json

RESULT = "result.json"
AVERAGE = "val-core/average"  # the metric of a validation that chooses
TASK = "task.json"  # what is evaluated, from the first part on
FORMAT = 1
_AGAIN = "move the folder away and evaluate again"


@dataclass(frozen=True)
class Result:
    """Content of `result.json`. Scores are shares in 0..1; `interval` is the 95% interval of avg@k, clustered by
    problem; None for too few problems.

    `subsets` holds the scores over each of the benchmark's subsets; `task` is what was evaluated and how (the identity
    that a resumed evaluation must share, with the problems' content hash); `grader` is the fingerprint behind the
    verdicts; `timeouts` are the answers that ran out of the grader's budget and count as wrong, None where an earlier
    version did not count them.
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
    timeouts: int | None = None
    format: int = FORMAT


@dataclass(frozen=True)
class Validated:
    """Answers of a run's last weights to its validation problems. share: of right responses. problems: hash of the
    problems, and of how they were asked."""

    problems: str
    share: float


def has_result(folder: Path) -> bool:
    """Tell whether an evaluation is finished."""
    return os.path.exists(folder / RESULT)


def save_result(folder: Path, result: Result) -> None:
    """Write the result: from now on the evaluation is finished."""
    write_json(folder / RESULT, asdict(result))


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
        raise UserError(
            "the result is damaged: scores, counts or the task are missing or no numbers", where=str(path), fix=_AGAIN
        )
    return result


def _complete(result: Result) -> bool:
    """Tell whether everything that tables and commands read is there, with the right type."""
    k = result.samples
    wanted = {"truncated", "mean_tokens", f"avg@{k}", *([f"pass@{k}", f"maj@{k}"] if k > 1 else [])}
    counts = all(type(count) is int and count > 0 for count in (result.problems, k))
    numbers = all(
        isinstance(value, int | float) and not abs(value) > 1e15
        for scores in (result.scores, *result.subsets.values())
        for value in (result.accuracy, *scores.values())
    )
    known = result.timeouts is None or type(result.timeouts) is int
    return (
        counts
        and numbers
        and known
        and isinstance(result.task, dict)
        and isinstance(result.benchmark, str)
        and all(wanted <= set(scores) for scores in (result.scores, *result.subsets.values()))
    )
