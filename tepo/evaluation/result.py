"""What a finished evaluation says: `result.json`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo.errors import UserError

FORMAT = 1


@dataclass(frozen=True)
class Result:
    """What `result.json` holds. Scores are shares in 0..1; `interval` is the 95% interval of avg@k, clustered by problem.

    `subsets` holds the scores over each of the benchmark's subsets; `task` is what was evaluated and how (the identity that a
    resumed evaluation must share, with the problems' content hash); `grader` is the fingerprint behind the verdicts.
    """

    benchmark: str
    problems: int
    samples: int
    accuracy: float
    interval: tuple[float, float]
    scores: dict[str, float]
    subsets: dict[str, dict[str, float]]
    grader: str
    task: dict[str, Any]
    format: int = FORMAT


def load_result(folder: Path) -> Result | None:
    """The result of a finished evaluation, or None. Raises UserError for a file this version cannot read."""
    path = folder / "result.json"
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        result = Result(**{**value, "interval": tuple(value["interval"])})
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"not a result of this version: {error}", where=str(path), fix="move the folder away and evaluate again") from None
    if result.format != FORMAT:
        raise UserError(f"result of format {result.format}, this version reads {FORMAT}", where=str(path), fix="move the folder away and evaluate again")
    return result
