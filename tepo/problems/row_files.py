"""Files of rows in the formats that users have: CSV, TSV, JSON, JSON lines, Parquet.

A file is read as the rules of its format say, or refused with the line: no row gets what belongs to another.
"""

import codecs
import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo.common.errors import UserError
from tepo.common.files import parse_json
from tepo.common.text import counted, listed
from tepo.config.own_files import DATA_SUFFIXES, PACKED, SHEETS
from tepo.problems.rows import AS_WRITTEN

if TYPE_CHECKING:
    import pyarrow

Row = Mapping[str, Any]
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_TOLD = re.compile(r'"?sep=([,;\t])"?(?:\r\n|\r|\n)')  # the first line, as Excel writes and reads it
_TO_CONVERT = re.compile("float|decimal|binary|map<")  # in the name of a type of Arrow, whose 64 bits are "double"
_NAMED = 5  # lines in a message
_QUOTING = 'put a field that holds the separator, a quotation mark or a line break in "…", with "" for each of its own'


def read_rows(path: Path, is_row: Callable[[Row], bool], encoding: str | None = None) -> tuple[list[Row], list[str]]:
    """The rows of a file, and remarks for people on how it was read.

    is_row: tells of a JSON object that holds one list of objects whether it is a row itself; if not, the list holds the
    rows. encoding: of a table that is neither UTF-8 nor marked as UTF-16, by a name that Python knows.

    Raises UserError for a kind of file that is not read, and for one that breaks the rules of its format."""
    kind = path.suffix.lower()
    if kind not in DATA_SUFFIXES:
        raise _other_kind(path)
    if encoding and kind not in (".csv", ".tsv"):
        what = f"data.fields.encoding={encoding} is for CSV and TSV; {kind} has a fixed encoding"
        raise UserError(what, where=str(path), fix=f"leave it out; iconv -f {encoding} -t utf-8 converts a text file")
    try:
        if kind == ".parquet":
            return _parquet(path), []
        text, remarks = _text(path, encoding)
        if kind == ".csv":
            rows, more = _table(text, ",")
        elif kind == ".tsv":
            rows, more = _table(text, "\t")
        else:
            rows, more = _json(text, is_row) if kind == ".json" else (_lines(text), list[str]())
            rows = [dict(zip(_unlike(row), row.values(), strict=True)) for row in rows]
        return rows, remarks + more
    except UserError as error:
        what, fix = error.what, error.fix
    except (ValueError, OSError) as error:  # of json, pyarrow, and what is no row
        what, fix = (str(error).splitlines() or [type(error).__name__])[0], "mend or convert the file"
    raise UserError(f"not read as {kind}: {what}", where=str(path), fix=fix)


def table_rows(table: "pyarrow.Table") -> list[Row]:
    """The rows of a table of Arrow, with numbers as people wrote them: a float of 32 or 16 bits is the shortest decimal
    that it stands for, an exact decimal is its text. Bytes become text where they are some, maps mappings.

    Raises UserError for two columns of one name."""
    names = _unlike(table.column_names)
    columns = [
        [_plain(value, column.type) for value in column.to_pylist()]
        if _TO_CONVERT.search(str(column.type))
        else column.to_pylist()
        for column in table.columns
    ]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _other_kind(path: Path) -> UserError:
    what, fix = "not a kind of file that is read", f"a file of problems: {', '.join(DATA_SUFFIXES)}"
    if path.suffix.lower() in SHEETS:
        what, fix = "a spreadsheet, which is not read", "save its sheet as CSV, and name that file"
    elif path.suffix.lower() in PACKED:
        what, fix = "a packed file, which is not read", "unpack it (gunzip, unzip …), and name what is in it"
    return UserError(what, where=str(path), fix=fix)


def _unlike(names: Iterable[str]) -> list[str]:
    """Names without blanks around them. Raises UserError where two are the same then."""
    stripped = [name.strip() for name in names]
    if len(set(stripped)) < len(stripped):
        twice = Counter(stripped).most_common(1)[0][0]
        raise UserError(f"two columns are called {twice!r}", fix="rename one, or leave it out")
    return stripped


def _lines(text: str) -> list[Row]:
    rows = list[Row]()
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(parse_json(line.removeprefix("\ufeff"), **AS_WRITTEN))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            if not isinstance(rows[-1], Mapping):
                raise ValueError(f"line {number}: not keys and values")
    return rows


def _json(text: str, is_row: Callable[[Row], bool]) -> tuple[list[Row], list[str]]:
    """A list of rows, rows below a key of a mapping, one row, or JSON lines under another name."""
    try:
        value = parse_json(text, **AS_WRITTEN)
    except ValueError:
        try:
            parse_json(text.lstrip().partition("\n")[0])
        except ValueError:
            pass  # the first line is no row, so that the fault of the whole is what there is to say
        else:
            return _lines(text), []
        raise
    remarks = list[str]()
    if isinstance(value, Mapping):
        lists = [
            key for key, part in value.items() if isinstance(part, list) and any(isinstance(x, Mapping) for x in part)
        ]
        if not lists or is_row(value):
            return [value], []
        if len(lists) > 1:
            raise ValueError(f"several lists of rows ({', '.join(lists)}), of which one is read: a file for each")
        value, remarks = value[lists[0]], [f"rows below {lists[0]!r}"]
    if not isinstance(value, list):
        raise ValueError("not keys and values")
    for number, row in enumerate(value, 1):
        if not isinstance(row, Mapping):
            raise ValueError(f"row {number}: not keys and values")
    return value, remarks


def _text(path: Path, encoding: str | None) -> tuple[str, list[str]]:
    """The text of a file; a mark at its beginning counts more than a name. Raises UserError for what is no text, and
    where the name cannot be right."""
    data = path.read_bytes()
    marked = next((name for mark, name in _MARKS.items() if data.startswith(mark)), None)
    codec, named = marked or encoding or "utf-8", f"data.fields.encoding={encoding}"
    try:
        text = data.decode(codec)
    except LookupError:
        raise UserError(f"{named} is no encoding of text", fix="cp1252, latin-1, or another that Python has") from None
    except UnicodeDecodeError as error:
        text, broken = "", data[: error.start].count(b"\n") + 1
    else:
        broken = 0
    if "\0" in text or (broken and not marked and b"\0" in data):
        raise UserError("NUL bytes, which no text has", fix="data.fields.encoding=utf-16-le where it is UTF-16")
    if encoding and not marked and _is_utf8(data) and not data.isascii() and not codec.lower().startswith("utf"):
        raise UserError(f"its text is in UTF-8, unlike {named}", fix="leave that out")
    if encoding and (control := re.search(r"[\x80-\x9f]", text)):  # Latin-1 has these where Windows-1252 has letters
        broken = text.count("\n", 0, control.start()) + 1
    if broken:
        fix = "data.fields.encoding=cp1252 reads a table in Windows-1252"
        fix += f", iconv -f cp1252 -t utf-8 {path.name} converts any file"
        fix = "copy the file again: cut off?" if marked == "utf-16" else fix
        raise UserError(f"line {broken}: not text in {'UTF-8' if codec.startswith('utf-8') else codec}", fix=fix)
    return text, [f"read as {codec}"] if codec not in ("utf-8", "utf-8-sig") else []


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _table(text: str, usual: str) -> tuple[list[Row], list[str]]:
    """Rows of a table whose first line names the columns. Of the separators in that line the one counts by which every
    row has as many fields as there are names. usual: what files of this kind have."""
    match = _TOLD.match(text)
    lines = list(io.StringIO(text, newline=""))
    if match:
        lines[0] = "\n"
    header = next((line for line in lines if line.strip()), "")
    if not header:
        raise UserError("the file is empty", fix="a first line that names the columns")
    likely = [match[1]] if match else [separator for separator in (usual, *_SEPARATORS) if separator in header]
    tables: dict[str, tuple[list[str], list[Row], list[str]]] = {}
    faults = list[UserError]()
    for separator in dict.fromkeys(likely or [usual]):
        try:
            tables[separator] = _split(lines, separator)
        except UserError as error:
            faults.append(error)
    fitting = [separator for separator, (names, _, _) in tables.items() if len(names) > 1]
    if len(fitting) > 1:
        separators = " or by ".join(map(_SEPARATORS.__getitem__, fitting))
        raise UserError(
            f"separated by {separators}? Both fit all lines", fix="put the names of columns in quotation marks"
        )
    if faults and not fitting:
        raise faults[0]
    separator = fitting[0] if fitting else next(iter(tables))
    _, rows, remarks = tables[separator]
    if fitting and separator != usual:
        remarks = [f"separated by {_SEPARATORS[separator]}", *remarks]
    return rows, remarks


def _split(lines: Sequence[str], separator: str) -> tuple[list[str], list[Row], list[str]]:
    """Names of the columns, rows and remarks. lines: with their ends; blank ones do not count.

    Raises UserError with the lines for rows that are longer or shorter than the header, and for quotation marks that
    may hold together what belongs apart."""
    csv.field_size_limit(sys.maxsize)  # conversations are longer than what it is set to
    reader = csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=True)
    names, rows, remarks = list[str](), list[Row](), list[str]()
    ragged, spanning, bare = list[str](), list[str](), list[str]()
    while True:
        start = reader.line_num
        try:
            cells = next(reader, None)
        except csv.Error:
            place = _lines_of(start, reader.line_num)
            what = f"{place}: a quotation mark opens a field and closes inside it, or never"
            raise UserError(what, fix=_QUOTING) from None
        if cells is None:
            break
        text, where = "".join(lines[start : reader.line_num]), _lines_of(start, reader.line_num)
        if len(cells) < 2 and not text.strip():
            continue
        if reader.line_num > start + 1:
            spanning.append(where)
            if separator == "\t" and any("\t" in cell and re.search("[\r\n]", cell) for cell in cells):
                raise UserError(f"{where}: a quotation mark holds tabs and line breaks together", fix=_QUOTING)
        if text.count('"') < sum(2 * cell.count('"') + 2 for cell in cells if '"' in cell):
            bare.append(where)
        if not names:
            names = [cell.strip() for cell in cells]
            _unlike(filter(None, names))
        elif len(cells) != len(names):
            ragged.append(f"{counted(len(cells), 'field')} in {where}")
        elif [cell.strip("\ufeff ") for cell in cells] == names:
            what = f"{where}: the names of the columns again, as in several files put together"
            raise UserError(what, fix="leave that line out")
        else:
            rows.append({name: cell for name, cell in zip(names, cells, strict=True) if name})
    if ragged:
        more = [f"{len(ragged) - _NAMED} more"] if len(ragged) > _NAMED else []
        header = f"{counted(len(names), 'column')} in the header (separated by {_SEPARATORS[separator]}), but "
        raise UserError(header + listed([*ragged[:_NAMED], *more]), fix=_QUOTING)
    if bare and spanning:
        what = f"{bare[0]} has a quotation mark in a field that is not in quotation marks"
        raise UserError(f"{what}, so that those of {spanning[0]} may be text, too", fix=_QUOTING)
    if spanning:
        remarks.append(f"{counted(len(spanning), 'row')} over several lines, as in {spanning[0]}")
    if "" in names:
        remarks.append(f"left out {counted(names.count(''), 'column')} without a name")
    return names, rows, remarks


def _lines_of(before: int, last: int) -> str:
    """The lines of a row, from the number of those before it."""
    return f"line {last}" if last <= before + 1 else f"lines {before + 1} to {last}"


def _parquet(path: Path) -> list[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        return table_rows(parquet.ParquetFile(path).read())
    except (pyarrow.ArrowException, OverflowError, MemoryError) as error:
        raise ValueError(str(error)) from None


def _plain(value: Any, kind: "pyarrow.DataType") -> Any:
    """A value as `table_rows` gives it. kind: its type in Arrow."""
    from pyarrow import types

    if value is None or types.is_string(kind):
        return value
    if types.is_float16(kind) or types.is_float32(kind):
        return float(str(kind.to_pandas_dtype()(value)))
    if types.is_decimal(kind):
        text = format(value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(value, bytes):
        return value.decode() if _is_utf8(value) else value
    if types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if isinstance(value, list):
        return [_plain(item, kind.value_type) for item in value]
    return _plain(value, kind.value_type) if hasattr(kind, "value_type") else value  # of a dictionary
