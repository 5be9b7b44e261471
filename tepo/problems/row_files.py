"""Files of rows in the formats that users have: CSV, TSV, JSON, JSON lines, Parquet."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError
from tepo.common.files import parse_json
from tepo.problems.rows import AS_WRITTEN


def read_rows(path: Path) -> tuple[list[Any], tuple[str, ...]]:
    """The rows of a file, and remarks for people on how it was read. Raises UserError for what cannot be read."""
    try:
        return _READERS[path.suffix](path), ()
    except (ValueError, OSError) as error:  # of json, pandas, pyarrow and the text itself
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"not read as {path.suffix}: {said}", where=str(path), fix="mend or convert the file") from None


def _lines(path: Path) -> list[Any]:
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if line.strip():
            try:
                rows.append(parse_json(line, **AS_WRITTEN))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
    return rows


def _json(path: Path) -> list[Any]:
    """A list of rows, rows below one key of a mapping, or JSON lines under another name."""
    try:
        found = parse_json(path.read_bytes(), **AS_WRITTEN)
    except ValueError:
        return _lines(path)
    if isinstance(found, dict):
        lists = [value for value in found.values() if isinstance(value, list)]
        found = lists[0] if len(lists) == 1 else [found]
    return found if isinstance(found, list) else [found]


def _table(separator: str) -> Callable[[Path], list[Any]]:
    def read(path: Path) -> list[Any]:
        import pandas

        table = pandas.read_csv(path, sep=separator, dtype=str, keep_default_na=False)
        return table.to_dict("records")

    return read


def _parquet(path: Path) -> list[Any]:
    from pyarrow import parquet

    return parquet.read_table(path).to_pylist()


_READERS: dict[str, Callable[[Path], list[Any]]] = {
    ".jsonl": _lines,
    ".json": _json,
    ".csv": _table(","),
    ".tsv": _table("\t"),
    ".parquet": _parquet,
}
