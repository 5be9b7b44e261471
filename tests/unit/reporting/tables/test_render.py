import csv as csv_reader
import io
import subprocess
from pathlib import Path

import pytest

from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.render import as_text
from tepo.reporting.tables.table import Cell, Column, Kind, Table, TableBlock, TableRow, ranked


def test_a_text_that_a_spreadsheet_would_compute_is_quoted_and_numbers_are_not() -> None:
    labels = ("=1+2", "+A1", "-A1", "@SUM(A1)", "\t=1", "\n=1", "-1+1|cmd", "-0.5", "+3", "-1e-3", "a=b", "")
    value = Cell(-1.5, -2, -1, n=4)
    rows = tuple(TableRow(label, label, (value, Cell(text=label))) for label in labels)
    block = TableBlock("=b", (Column("@c", "+t", Kind.DELTA), Column("words", "words", Kind.TEXT)), rows)
    lines = list(csv_reader.DictReader(io.StringIO(as_text(Table("t", "t", (block,)), "csv"), newline="")))
    quoted = [*(f"'{label}" for label in labels[:7]), *labels[7:]]
    assert [line["label"] for line in lines[::2]] == [line["text"] for line in lines[1::2]] == quoted
    assert {(line["block"], line["column"], line["title"], line["value"], line["low"]) for line in lines[::2]} == {
        ("'=b", "'@c", "'+t", "-1.5", "-2")
    }


def test_text_is_no_markup_and_its_controls_are_spelt_out() -> None:
    label, shown = "[bold]a[/bold]:warning:\x1b[31m\x9b1m\u202e", "[bold]a[/bold]:warning:\\x1b[31m\\x9b1m\\u202e"
    block = TableBlock(
        label, (Column("c", label, Kind.TEXT),), (TableRow("r", label, (Cell(text=label),)),), notes=(label,)
    )
    text = as_text(Table("t", label, (block,), (label,)), "terminal", 200)
    assert shown in text
    assert not set(text) & set("\x1b\x9b\u202e")


def test_csv_is_tidy_and_unrounded(table: Table) -> None:
    lines = list(csv_reader.DictReader(io.StringIO(as_text(table, "csv"))))
    assert len(lines) == sum(len(block.rows) * len(block.columns) for block in table.blocks)
    measured = next(
        line for line in lines if line["row"] == "c" and line["column"] == "average" and line["block"] == "Measured"
    )
    cell = table.blocks[0].rows[2].cells[2]
    assert float(measured["value"]) == pytest.approx(cell.mean, rel=1e-5)
    assert float(measured["low"]) == pytest.approx(cell.low, rel=1e-5)
    assert measured["n"] == str(cell.n)
    assert {line["value"] for line in lines if line["row"] == "d"} == {""}


@pytest.mark.parametrize("percent", [70.75, 0.25])
def test_the_order_of_a_sum_changes_no_printed_figure(percent: float) -> None:
    column = Column("average", "Avg.")
    sums = [percent * (1 + error) for error in (-4e-16, 0, 4e-16)]
    assert len(set(sums)) == 3
    assert len({format_value(Cell(one), column, 1) for one in sums}) == 1
    block = ranked(TableBlock("Measured", (column,), tuple(TableRow(str(one), str(one), (Cell(one),)) for one in sums)))
    assert [row.cells[0].rank for row in block.rows] == [1, 1, 1]


@pytest.mark.latex
def test_latex_compiles(table: Table, tmp_path: Path) -> None:
    (tmp_path / "table.tex").write_text(as_text(table, "latex"))
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in done.stdout


@pytest.mark.parametrize(
    ("cell", "kind", "value", "interval"),
    [
        (Cell(), Kind.SCORE, "–", ""),
        (Cell(12.345, 10.0, 14.6), Kind.SCORE, "12.3", "±2.3"),
        (Cell(0.0, 0.0, 1.8), Kind.SCORE, "0.0", "[0.0, 1.8]"),
        (Cell(34.7, 2.0, 100.0), Kind.SCORE, "34.7", "[2.0, 100.0]"),
        (Cell(-1.26, -3.0, 0.5), Kind.DELTA, "−1.3", "[−3.0, 0.5]"),
        (Cell(-0.01, -0.02, 0.02), Kind.DELTA, "0.0", "[0.0, 0.0]"),
        (Cell(2.0), Kind.DELTA, "+2.0", ""),
        (Cell(text="better"), Kind.TEXT, "better", ""),
    ],
)
def test_numbers_as_text(cell: Cell, kind: Kind, value: str, interval: str) -> None:
    column = Column("x", "x", kind)
    assert format_value(cell, column, 1) == value
    assert format_interval(cell, column, 1) == interval
