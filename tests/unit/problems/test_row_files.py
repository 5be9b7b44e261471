import contextlib
import csv
import io
import itertools
import json
import random
import re
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.config.own_files import is_own
from tepo.problems.data_reader import read_data
from tepo.problems.row_files import read_rows
from tepo.problems.sources import Dataset, Fields, read_hub
from tepo.problems.training_sets import training_fingerprint

Q, A = "question", "answer"
TWO = [{Q: "1 + 1?", A: "2"}, {Q: "2, 2?", A: "4"}]
TABLE = 'question,answer\n1 + 1?,2\n"2, 2?",4\n'
PARIS = [{Q: "Où est l’été?", A: "5"}]


def rows_of(path: Path, encoding: str | None = None) -> list[dict]:
    return [dict(row) for row in read_rows(path, lambda row: Q in row, encoding)[0]]


READ = {
    "semicolons": (".csv", 'question;answer\n1 + 1?;"2"\n2, 2?;4\n', TWO),
    "another separator in a name": (".csv", 'question,answer,"a;b"\n1 + 1?,2,\n', [{**TWO[0], "a;b": ""}]),
    "told to Excel": (".csv", "sep=;\r\nquestion;answer\r\n1 + 1?;2\r\n2, 2?;4\r\n", TWO),
    "CR": (".csv", TABLE.replace("\n", "\r"), TWO),
    "blank lines": (".csv", "\n" + TABLE.replace("\n", "\n  \n"), TWO),
    "blanks around names and before quotes": (".csv", ' question , answer\n1 + 1?, 2\n "2, 2?", "4"\n', TWO),
    "quotation marks inside": (".csv", 'question,answer\nSay "a",2\n', [{Q: 'Say "a"', A: "2"}]),
    "an index without a name": (".csv", ",question,answer\n0,1 + 1?,2\n", TWO[:1]),
    "empty cells, nan, None": (
        ".csv",
        "question,answer\na,\n,nan\nNone,\n",
        [{Q: "a", A: ""}, {Q: "", A: "nan"}, {Q: "None", A: ""}],
    ),
    "a long field": (".csv", f"question,answer\n{'x' * 200_000},2\n", [{Q: "x" * 200_000, A: "2"}]),
    "a mark of UTF-8": (".csv", ("\ufeff" + TABLE).encode(), TWO),
    "UTF-16, as Excel's Unicode text": (".csv", "question\tanswer\nOù est l’été?\t5\n".encode("utf-16"), PARIS),
    "line separators of Unicode": (".csv", "question,answer\na\u2028b\x85c,2\n", [{Q: "a\u2028b\x85c", A: "2"}]),
    "JSON lines put together, each with a mark": (".jsonl", "\n".join("\ufeff" + json.dumps(row) for row in TWO), TWO),
    "one row with a list of objects": (".json", json.dumps({**TWO[0], "c": [{"a": 1}]}), [{**TWO[0], "c": [{"a": 1}]}]),
    "rows below a key": (".json", json.dumps({"version": 2, "tags": ["a"], "meta": {"n": 2}, "data": TWO}), TWO),
}  # name: suffix, content, rows


@pytest.mark.parametrize("name", READ)
def test_files_that_are_read(name: str, tmp_path: Path) -> None:
    suffix, content, rows = READ[name]
    path = tmp_path / f"own{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert rows_of(path) == rows


REFUSED = {
    "a field more": (
        ".csv",
        "question,answer\n1 + 1?,2,x\n2?,4\n3?,6,y\n",
        "3 fields in line 2 and 3 fields in line 4",
    ),
    "a quotation mark that swallows rows": (
        ".csv",
        'question,answer\n"Two?,2\nThree?,3\nIs "3" it?,3\n',
        "lines 2 to 4: a quotation",
    ),
    "one that closes inside the field": (".csv", 'question,answer\n"Two" plus?,2\n', "line 2: a quotation mark opens"),
    "in a TSV, to the end of a field": (
        ".tsv",
        'question\tanswer\n"Two?\t2\nThree"\t3\n',
        "lines 2 to 3: a quotation mark holds",
    ),
    "where others are text": (
        ".csv",
        'question,answer\n"Two?,2\nA pipe of 3",3\nA 4" pipe?,4\n',
        "line 4 has a .* those of lines 2 to 3",
    ),
    "two names": (".csv", "question,answer, answer\n1?,2,3\n", "two columns are called 'answer'"),
    "names again": (".csv", TABLE + TABLE, "line 4: the names of the columns again"),
    "two separators": (".csv", "a;question,answer\n1;2,3\n", "separated by commas or by semicolons"),
    "nothing": (".csv", "", "the file is empty"),
    "Latin-1": (".csv", "question,answer\nà,2\n".encode("latin-1"), r"line 2: not text in UTF-8[\s\S]*encoding=cp1252"),
    "UTF-16 without its mark": (".csv", TABLE.encode("utf-16-le"), r"NUL bytes[\s\S]*utf-16-le"),
    "a list in JSON lines": (".jsonl", json.dumps(TWO[0]) + "\n[1]\n", "line 2: not keys and values"),
    "cut JSON": (".json", json.dumps(TWO)[:-5], "not JSON"),
    "a key twice": (".json", '[{"answer": 1, "answer": 2}]', "the key 'answer' is there twice"),
    "a number of many digits": (".json", f'[{{"answer": {"1" * 5000}}}]', "5,000 digits: put it in quotes"),
    "several lists of rows": (
        ".json",
        json.dumps({"train": TWO, "test": TWO}),
        r"several lists of rows \(train, test\)",
    ),
    "a cut Parquet": (".parquet", b"PAR1abcd", "not read as .parquet"),
    "a spreadsheet": (".xlsx", b"PK", r"a spreadsheet[\s\S]*as CSV"),
    "a packed file": (".csv.gz", zlib.compress(TABLE.encode()), r"a packed file[\s\S]*unpack"),
}  # name: suffix, content, message


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_refused(name: str, tmp_path: Path) -> None:
    suffix, content, message = REFUSED[name]
    path = tmp_path / f"own{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert is_own("data", str(path))
    with pytest.raises(UserError, match=message):
        read_rows(path, lambda row: Q in row)


@pytest.mark.parametrize(
    ("encoding", "written", "message"),
    [
        ("cp1252", "cp1252", ""),
        ("cp1252", "utf-16", ""),  # its mark counts
        ("latin-1", "cp1252", "line 2: not text in latin-1"),
        ("cp125", "cp1252", "encoding=cp125 is no encoding"),
    ],
)
def test_another_encoding_is_named(encoding: str, written: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes("question,answer\nOù est l’été?,5\n".encode(written))
    config = compose([f"data={path}", f"data.fields.encoding={encoding}"])
    if message:
        with pytest.raises(UserError, match=message):
            read_data(config.data.problems, config.data.fields)
    else:
        assert [one.prompt for one in read_data(config.data.problems, config.data.fields).problems] == [PARIS[0][Q]]


COLUMNS = {
    "float32": (pa.array([0.1, 12.0, 1e20, None], pa.float32()), [0.1, 12.0, 1e20, None]),
    "float16": (pa.array(numpy.array([0.1, 0.5], "float16")), [0.1, 0.5]),
    "exact decimals": (pa.array([Decimal("1.50"), Decimal("5.00"), Decimal("0.00")]), ["1.5", "5", "0"]),
    "long decimals": (pa.array([Decimal("12345678901234567890123456789.1250")]), ["12345678901234567890123456789.125"]),
    "whole numbers": (pa.array([2**53 + 1, -(2**63)]), [2**53 + 1, -(2**63)]),
    "a dictionary of float32": (pa.array([0.1, 0.1], pa.float32()).dictionary_encode(), [0.1, 0.1]),
    "a struct": (
        pa.array([{"a": [{"b": 0.1}]}], pa.struct({"a": pa.list_(pa.struct({"b": pa.float32()}))})),
        [{"a": [{"b": 0.1}]}],
    ),
    "a map": (pa.array([[("a", 0.1)]], pa.map_(pa.string(), pa.float32())), [{"a": 0.1}]),
    "bytes that are text": (pa.array(["é".encode(), b"\xff"], pa.binary()), ["é", b"\xff"]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_parquet(name: str, tmp_path: Path) -> None:
    column, values = COLUMNS[name]
    parquet.write_table(pa.table({" x": column}), tmp_path / "own.parquet")
    assert rows_of(tmp_path / "own.parquet") == [{"x": value} for value in values]


def test_parquet_that_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    parquet.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["answer", "answer"]), path)
    with pytest.raises(UserError, match="two columns are called 'answer'"):
        rows_of(path)
    parquet.write_table(pa.table({"t": pa.array([2**62], pa.timestamp("ms"))}), path)
    with pytest.raises(UserError, match=r"not read as \.parquet"):
        rows_of(path)


def test_a_set_of_the_hub_has_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder stands for one."""
    folder = tmp_path / "org" / "own"
    folder.mkdir(parents=True)
    table = pa.table({Q: ["a", "b"], A: pa.array([0.1, 2.0], pa.float32())})
    parquet.write_table(table, folder / "train.parquet")
    monkeypatch.chdir(tmp_path)
    assert [one.answer for one in read_data("org/own").problems] == ["0.1", "2"]
    source = Dataset("parquet", split="train", data_files=(str(folder / "train.parquet"),), fields=Fields(problem=Q))
    assert [one.answer for one in read_hub(source, "own")] == ["0.1", "2"]


def test_the_fingerprint_is_that_of_the_rows_however_they_are_written(tmp_path: Path) -> None:
    """What is read otherwise than before thereby has another one."""
    written = {
        "a.csv": b"question,answer\n1?,0.1\n2?,4\n",
        "b.csv": "question;answer;note\r\n1?;0.1;à\r\n2?;4;\r\n".encode("utf-16"),
        "c.tsv": b'\xef\xbb\xbf question \tanswer\n"1?"\t0.1\n2?\t4',
        "d.json": b'{"n": 2, "data": [{"question": "1?", "answer": 0.1}, {"question": "2?", "answer": 4}]}',
    }
    for name, content in written.items():
        (tmp_path / name).write_bytes(content)
    for kind in (pa.float32(), pa.float16()):
        values = pa.array(numpy.array([0.1, 4.0], kind.to_pandas_dtype()))
        parquet.write_table(pa.table({Q: ["1?", "2?"], A: values}), tmp_path / f"{kind}.parquet")
    prints = {training_fingerprint(str(path)) for path in sorted(tmp_path.iterdir())}
    assert len(prints) == 1
    parquet.write_table(pa.table({Q: ["1?", "2?"], A: [float(numpy.float32(0.1)), 4.0]}), tmp_path / "z.parquet")
    assert training_fingerprint(str(tmp_path / "z.parquet")) not in prints


CELLS = st.lists(st.lists(st.text("ab ,;\"\n\r'\\\u2028é", max_size=6), min_size=2, max_size=2), max_size=4)


@given(CELLS, st.sampled_from(",;"), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
def test_what_a_writer_of_tables_writes_is_read(tmp_path_factory, cells, separator, quoting) -> None:
    file = io.StringIO()
    csv.writer(file, delimiter=separator, quoting=quoting).writerows([[Q, A], *cells])
    path = tmp_path_factory.mktemp("own") / "own.csv"
    path.write_bytes(file.getvalue().encode())
    read = [[row[Q].strip(" "), row[A].strip(" ")] for row in rows_of(path)]
    assert read == [[cell.strip(" ") for cell in row] for row in cells]


# --- files that were changed -----------------------------------------------------------------------------------------

GOOD = [{Q: f'What{n}, is "{n}"\n + {n}?' if n % 3 == 0 else f"What{n} is {n} + {n}?", A: f"A{n}"} for n in range(6)]
FILES = 2000
PIECES = [b",", b";", b"\t", b'"', b'""', b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"{", b"]", b" "]


def _as_table(separator: str, quoting: int = csv.QUOTE_MINIMAL) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=separator, quoting=quoting, lineterminator="\n")
    writer.writerows([[Q, A], *([row[Q], row[A]] for row in GOOD)])
    return file.getvalue().encode()


WRITTEN = [
    (".csv", _as_table(",")),
    (".csv", _as_table(",", csv.QUOTE_ALL)),
    (".csv", _as_table(";")),
    (".csv", _as_table(";").decode().encode("utf-16")),
    (".tsv", _as_table("\t")),
    (".jsonl", "".join(json.dumps(row) + "\n" for row in GOOD).encode()),
]


def _changed(draw: random.Random, data: bytes) -> bytes:
    """A bit the other way round, a piece more, or a part less."""
    at, to = sorted((draw.randrange(len(data)), draw.randrange(len(data) + 1)))
    piece, after = draw.choice(PIECES), draw.choice([at, at, at + 1])
    bit = data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
    return draw.choice([bit, data[:at], data[:at] + data[to:], *[data[:at] + piece + data[after:]] * 4])


def _tables(data: bytes) -> list[list[dict[str, str]]]:
    """What a table may say, by any separator and with blanks before quotation marks or without."""
    said = []
    for name, separator, skip in itertools.product(("utf-8-sig", "utf-16"), ",;\t", (False, True)):
        try:
            text = io.StringIO(data.decode(name), newline="")
            reader = csv.reader(text, delimiter=separator, strict=True, skipinitialspace=skip)
            header, *rows = [row for row in reader if any(cell.strip() for cell in row)]
        except (ValueError, csv.Error):
            continue
        names = [cell.strip() for cell in header]
        if all(len(row) == len(names) for row in rows):
            said.append([{key: cell.lstrip(" ") for key, cell in zip(names, row, strict=True) if key} for row in rows])
    return said


def _json_lines(data: bytes) -> list[list[Any]]:
    with contextlib.suppress(ValueError):
        rows = [json.loads(line.decode("utf-8-sig")) for line in data.split(b"\n") if line.strip()]
        return [[{key.strip(): cell for key, cell in row.items()} for row in rows]]
    return []


@pytest.mark.disaster
def test_a_changed_file_gives_the_rows_that_it_holds_or_an_error(tmp_path: Path) -> None:
    """A second reading of each, by strict rules, tells what it holds. One character more or less never gives a row the
    words of two, as two quotation marks can by the rules."""
    draw, taken = random.Random(59), 0
    for number in range(FILES):
        suffix, good = draw.choice(WRITTEN)
        data, changes = good, draw.choice([0, 1, 1, 1, 2, 3])
        for _ in range(changes):
            data = _changed(draw, data) or b" "
        path = tmp_path / f"{number}{suffix}"
        path.write_bytes(data)
        try:
            rows = rows_of(path)
        except UserError:
            continue
        taken += 1
        if suffix == ".jsonl":
            assert rows in _json_lines(data), data
        else:
            said = [
                {key: cell.lstrip(" ") for key, cell in row.items()} for row in rows if "".join(row.values()).strip()
            ]
            assert said in _tables(data), data
        if changes <= 1 and 0 < abs(len(data) - len(good)) < 4:
            for row in rows:
                marks = re.findall(
                    r"\b(?:What|A)(\d)", " ".join(cell for cell in row.values() if isinstance(cell, str))
                )
                assert len(set(marks)) < 2, data
    assert taken > FILES / 5
