"""Tables as text, and their finding in a sentence."""

import csv as csv_reader
import io
import subprocess
from pathlib import Path

import pytest

from tepo.reporting.headline import headline
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.render import as_text
from tepo.reporting.tables.table import BASELINE, VERDICT, Cell, Column, Kind, Table, TableBlock, TableRow, ranked


def test_a_text_that_a_spreadsheet_would_compute_is_quoted_and_numbers_are_not() -> None:
    labels = ("=1+2", "+A1", "-A1", "@SUM(A1)", "\t=1", "\n=1", "-1+1|cmd", "-0.5", "+3", "-1e-3", "a=b", "")
    rows = tuple(TableRow(label, label, (Cell(-1.5, -2, -1, n=4), Cell(text=label))) for label in labels)
    block = TableBlock("=b", (Column("@c", "+t", Kind.DELTA), Column("words", "words", Kind.TEXT)), rows)
    lines = list(csv_reader.DictReader(io.StringIO(as_text(Table("t", "t", (block,)), "csv"), newline="")))
    quoted = [*(f"'{label}" for label in labels[:7]), *labels[7:]]
    assert [line["label"] for line in lines[::2]] == [line["text"] for line in lines[1::2]] == quoted
    assert {(line["block"], line["column"], line["title"], line["value"], line["low"]) for line in lines[::2]} == {
        ("'=b", "'@c", "'+t", "-1.5", "-2")
    }


def test_text_is_no_markup_and_its_controls_are_spelt_out() -> None:
    label, shown = "[bold]a[/bold]:warning:\x1b[31m\x9b1m\u202e", "[bold]a[/bold]:warning:\\x1b[31m\\x9b1m\\u202e"
    row, column = TableRow("r", label, (Cell(text=label),)), Column("c", label, Kind.TEXT)
    block = TableBlock(label, (column,), (row,), notes=(label,))
    text = as_text(Table("t", label, (block,), (label,)), "terminal", 200)
    assert shown in text
    assert not set(text) & set("\x1b\x9b\u202e")


def test_csv_is_tidy_and_unrounded(table: Table) -> None:
    lines = list(csv_reader.DictReader(io.StringIO(as_text(table, "csv"))))
    assert len(lines) == sum(len(block.rows) * len(block.columns) for block in table.blocks)
    keys = ("block", "row", "column")
    (line,) = (line for line in lines if [line[key] for key in keys] == ["Measured", "c", "average"])
    cell = table.blocks[0].column("average")["c"]
    assert [float(line[key]) for key in ("value", "low", "n")] == pytest.approx([cell.mean, cell.low, cell.n], rel=1e-5)
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
        (Cell(34.7, 2.0, 100.0), Kind.SCORE, "34.7", "[2.0, 100.0]"),
        (Cell(-1.26, -3.0, 0.5), Kind.DELTA, "−1.3", "[−3.0, 0.5]"),
        (Cell(-0.01, -0.02, 0.02), Kind.DELTA, "0.0", "[0.0, 0.0]"),
        (Cell(2.0), Kind.DELTA, "+2.0", ""),
    ],
)
def test_numbers_as_text(cell: Cell, kind: Kind, value: str, interval: str) -> None:
    column = Column("x", "x", kind)
    assert format_value(cell, column, 1) == value
    assert format_interval(cell, column, 1) == interval


# the finding ----------------------------------------------------------------------------------------------------------
DELTA, WORDS = Column("delta", "Δ", Kind.DELTA), Column(VERDICT, "Verdict", Kind.TEXT)


def compared(*rows: tuple[str, float, str]) -> Table:
    """Rows beside one that is called plain."""
    base = TableRow("plain", "plain", (Cell(50.0), Cell(), Cell(text=BASELINE)))
    lines = [TableRow(name, name, (Cell(50.0 + delta), Cell(delta), Cell(text=word))) for name, delta, word in rows]
    columns = (Column("average", "Avg."), DELTA, WORDS)
    return Table("mine", "Mine", (TableBlock("Measured", columns, (base, *lines), baseline="plain"),))


def claims(*outcomes: str) -> Table:
    rows = tuple(TableRow(str(n), str(n), (Cell(text=text),)) for n, text in enumerate(outcomes))
    return Table("registered", "Claims", (TableBlock("Claims", (Column("claim", "", Kind.TEXT),), rows),))


def drawn(*rows: tuple[float, str]) -> Table:
    """Differences to one that is called plain with an interval that leaves out 0, before verdicts on each base."""
    cells = [(Cell(delta, delta - 0.1, delta + 0.1), Cell(text=word)) for delta, word in rows]
    lines = tuple(TableRow(f"row {number}", f"row {number}", pair) for number, pair in enumerate(cells))
    block = TableBlock("Against plain", (DELTA, WORDS), lines, baseline="plain", drawn="base")
    return Table("mine", "Mine", (block, *compared(("row 0", -1.0, "worse")).blocks))


CASES = {
    "Of 4 registered claims 2 hold, 1 is refuted and 1 is undecided": claims(
        "holds", "refuted", "holds", "undecided", ""
    ),
    "a and b score below plain, none above; 1 not decided": compared(
        ("a", -3.0, "worse (p = .01)"), ("b", -1.0, "worse"), ("c", 0.1, "not decided (p = .9)")
    ),
    "Fewer than 3 seeds decide nothing: 2 rows lie −4.0 to +0.4 points from plain": compared(
        ("a", -4.0, "1 seed: no verdict"), ("b", 0.4, "2 seeds: no verdict")
    ),
    "On average over such bases: row 0 and row 2 score below plain, none above; 1 not decided": drawn(
        (-3.0, "worse (p = .01)"), (-1.0, "not decided (p = .06)"), (-2.0, "worse (p = .03)")
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_the_finding_in_a_sentence(sentence: str) -> None:
    assert headline(CASES[sentence]) == sentence


def test_a_row_of_ones_own_comes_first_of_all_tables() -> None:
    other, own = compared(("a", -3.0, "worse"), ("b", 0.1, "not decided")), compared(("mine", 2.0, "better"))
    sentence = "mine scores above plain; a scores below it; 1 not decided"
    assert headline(other, own, own={"mine"}) == headline(own, other, own={"mine"}) == sentence
