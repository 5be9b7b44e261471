"""Parquet files that anybody may have written: a few kilobytes of one can stand for terabytes of text."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_BYTES = 2 << 30  # of a table in memory: 16,384 responses of 32k tokens
_VALUES = 50_000_000  # in all columns that are read


def read_parquet(path: Path, columns: Sequence[str] | None = None, *, keep_categories: bool = False) -> pa.Table:
    """The columns of a file (None: all of them). keep_categories: leave texts coded, each once. Raises an
    ArrowInvalid for more than 2 GiB or fifty million values, before it takes room for them; what pyarrow raises for a
    file that it cannot read."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    parts = [group.column(number) for group in groups for number in range(group.num_columns)]
    chosen_parts = [part for part in parts if columns is None or part.path_in_schema.partition(".")[0] in columns]
    _check(sum(part.total_uncompressed_size for part in chosen_parts), sum(part.num_values for part in chosen_parts))
    texts = [field.name for field in metadata.schema.to_arrow_schema() if pa.types.is_string(field.type)]
    # a dictionary holds each text once, as the file has it
    with pq.ParquetFile(path, read_dictionary=texts, page_checksum_verification=True) as file:
        table = file.read(columns)
    _check(sum(map(_written_out, table.itercolumns())), 0)
    for index, name in enumerate(() if keep_categories else table.column_names):
        if pa.types.is_dictionary(table.field(index).type):
            table = table.set_column(index, name, table.column(index).cast(pa.string()))
    return table


def _written_out(column: pa.ChunkedArray) -> int:
    """Bytes of a column in which each row has its own text."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = [pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
    return sum(pc.sum(each.cast(pa.int64())).as_py() or 0 for each in lengths)


def _check(size: int, values: int) -> None:
    if size > _BYTES or values > _VALUES:
        raise pa.ArrowInvalid(f"holds {size:,} bytes and {values:,} values, more than is read")
