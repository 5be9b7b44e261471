"""One row a sample, on disk: parts while an evaluation runs, one Parquet file when it is done.

A part holds all rows of some problems and appears by rename, so an evaluation that is killed keeps every part. Which
problems share a part depends on what ended when; the file at the end does not.
"""

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tepo.common.errors import UserError
from tepo.common.files import write_atomic
from tepo.common.grouping import grouped
from tepo.common.parquet import read_parquet
from tepo.store.evaluation_result import PARTS, SAMPLES

SCHEMA = pa.schema(
    [
        ("problem", pa.string()),
        ("sample", pa.int32()),
        ("family", pa.string()),
        ("prompt", pa.string()),
        ("gold", pa.string()),
        ("response", pa.string()),
        ("extracted", pa.string()),  # null: no answer found
        ("correct", pa.bool_()),
        ("reason", pa.string()),
        ("tokens", pa.int32()),
        ("finish", pa.string()),  # stop | length
        ("logprob", pa.float64()),  # sum over the response's tokens, nats
        ("grader", pa.string()),  # fingerprint of the grader that gave the verdict
    ]
)
_AGAIN = "restore it from a copy, or move the evaluation's folder away and evaluate again"


def table_of(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows as an Arrow table with the fixed schema."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMA)


def write_table(path: Path, table: pa.Table) -> None:
    """Write Parquet atomically."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_atomic(path, buffer.getvalue())


def read_table(path: Path) -> pa.Table:
    """Read a table of samples. Raises UserError for a missing or damaged file, or one with other columns."""
    try:
        table = read_parquet(path)
        table.validate(full=True)  # text that is not UTF-8
    except FileNotFoundError:
        raise UserError("no samples here", where=str(path), fix="give the folder of a finished evaluation") from None
    except (pa.ArrowException, OSError) as error:
        what = f"not a readable Parquet file: {str(error).splitlines()[0]}"
        raise UserError(what, where=str(path), fix=_AGAIN) from None
    if table.schema.names != SCHEMA.names:
        what = "the columns are not those of an evaluation by this version"
        raise UserError(what, where=str(path), fix="evaluate again into a new folder")
    if table["correct"].null_count:
        raise UserError("samples without a verdict", where=str(path), fix=_AGAIN)
    return table.cast(SCHEMA)


def write_part(folder: Path, first: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store all rows of some problems. first: the lowest index of a problem among them, which names the part."""
    write_table(folder / PARTS / f"{first:05d}.parquet", table_of(rows))


def read_parts(folder: Path, samples: int) -> dict[str, list[dict[str, Any]]]:
    """The rows of each problem that has all of its samples in one part, in the order of the samples. A damaged part
    counts as if it were not there."""
    stored: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((folder / PARTS).glob("*.parquet")):
        with suppress(UserError):
            part = grouped((row["problem"], row) for row in read_table(path).to_pylist())
            stored |= {name: rows for name, rows in part.items() if len(rows) == samples}
    return stored


_PROBLEM = ("problem", "prompt", "gold")
_ANSWER = ("response", "extracted", "correct", "reason", "tokens")


class GradedResponse(NamedTuple):
    """One response. extracted: the answer read from it, None where there is none. reason: of the verdict. tokens: its
    length. finished: by itself, not at the length limit."""

    text: str
    extracted: str | None
    right: bool
    reason: str
    tokens: int
    finished: bool


@dataclass(frozen=True)
class ProblemAnswers:
    """One problem with the answers of one run."""

    id: str
    prompt: str
    gold: str
    answers: tuple[GradedResponse, ...]

    @property
    def samples(self) -> int:
        return len(self.answers)

    @property
    def right(self) -> int:
        return sum(answer.right for answer in self.answers)

    @property
    def different(self) -> list[tuple[GradedResponse, int]]:
        """Each different answer with how often it was given, the most frequent first."""
        return Counter(self.answers).most_common()


def disagree(one: ProblemAnswers, other: ProblemAnswers) -> bool:
    """Tell whether one run answers at least half of its samples right, and the other does not."""
    return (2 * one.right >= one.samples) != (2 * other.right >= other.samples)


def answered(folder: Path) -> list[ProblemAnswers]:
    """Stored responses of a finished evaluation, in the benchmark's order. Raises UserError for samples that cannot be
    read."""
    rows = read_table(folder / SAMPLES).select([*_PROBLEM, *_ANSWER, "finish"]).to_pylist()
    return [
        ProblemAnswers(problem, prompt, gold, tuple(map(_answer, group)))
        for (problem, prompt, gold), group in groupby(rows, key=itemgetter(*_PROBLEM))
    ]


def _answer(row: Mapping[str, Any]) -> GradedResponse:
    return GradedResponse._make([*map(row.get, _ANSWER), row["finish"] == "stop"])
