"""One row a sample, on disk: parts while an evaluation runs, one Parquet file when it is done.

Each part holds the rows of a fixed slice of the problems and appears by rename, so an evaluation that is killed keeps
every finished part and repeats at most the one it was in.
"""

import io
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tepo.errors import UserError
from tepo.files import write_atomic

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
SAMPLES = "samples.parquet"
_PARTS = "parts"


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
        table = pq.read_table(path)
    except FileNotFoundError:
        raise UserError("no samples here", where=str(path), fix="give the folder of a finished evaluation") from None
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"not a readable Parquet file: {str(error).splitlines()[0]}",
            where=str(path),
            fix="delete the evaluation's folder and evaluate again",
        ) from None
    if table.schema.names != SCHEMA.names:
        raise UserError(
            "the columns are not those of an evaluation by this version",
            where=str(path),
            fix="evaluate again into a new folder",
        )
    if table["correct"].null_count:
        raise UserError(
            "samples without a verdict", where=str(path), fix="delete the evaluation's folder and evaluate again"
        )
    return table.cast(SCHEMA)


def part_path(folder: Path, index: int) -> Path:
    """Where the rows of slice `index` go."""
    return folder / _PARTS / f"{index:05d}.parquet"


def read_part(folder: Path, index: int, rows: int) -> pa.Table | None:
    """A finished part, or None when it is missing, damaged or of another size (it is then sampled again)."""
    try:
        table = read_table(part_path(folder, index))
    except UserError:
        return None
    return table if table.num_rows == rows else None


def remove_parts(folder: Path) -> None:
    """Delete the parts of a finished evaluation."""
    shutil.rmtree(folder / _PARTS, ignore_errors=True)
