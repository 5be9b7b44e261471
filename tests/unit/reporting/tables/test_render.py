import csv as csv_reader
import io
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from tepo.common.errors import UserError
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.render import as_text, latex_text, render
from tepo.reporting.tables.table import Cell, Column, Kind, Table, TableBlock, TableRow, ranked


def test_unknown_format_names_the_nearest(table: Table) -> None:
    with pytest.raises(UserError, match="did you mean 'markdown'"):
        render(table, "markdwn")


def test_terminal_marks_best_and_second(table: Table) -> None:
    out = io.StringIO()
    Console(file=out, width=140, force_terminal=True, color_system="truecolor").print(render(table))
    best = next(row.cells[2].mean for row in table.blocks[0].rows if row.cells[2].rank == 1)
    second = next(row.cells[2].mean for row in table.blocks[-1].rows if row.cells[2].rank == 2)
    assert f"\x1b[1m{best:.1f}" in out.getvalue()
    assert f"\x1b[4m{second:.2f}" in out.getvalue()


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
    assert text.count(shown) == 7  # titles, heading, label, cell, notes
    assert not set(text) & set("\x1b\x9b\u202e")


def test_markdown_lines_have_as_many_cells_as_the_header(table: Table) -> None:
    lines = [line for line in as_text(table, "markdown").splitlines() if line.startswith("|")]
    counts = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
    assert set(counts) == {7, 10}
    assert "KL(A \\> 0 ∧ ΔH \\< 0) 100% \\[x\\_y\\]" in lines[-1] + "".join(lines)
    assert any("**" in line and "<u>" not in line for line in lines)


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


@pytest.mark.parametrize("percent", [70.75, 27.25, 3.05, 0.25])
def test_the_order_of_a_sum_changes_no_printed_figure(percent: float) -> None:
    column = Column("average", "Avg.")
    sums = [percent * (1 + error) for error in (-4e-16, 0, 4e-16)]
    assert len(set(sums)) == 3
    assert len({format_value(Cell(one), column, 1) for one in sums}) == 1
    block = ranked(TableBlock("Measured", (column,), tuple(TableRow(str(one), str(one), (Cell(one),)) for one in sums)))
    assert [row.cells[0].rank for row in block.rows] == [1, 1, 1]


def test_latex_is_balanced_and_escaped(table: Table) -> None:
    text = as_text(table, "latex")
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert text.replace(r"\{", "").replace(r"\}", "").count("{") == text.replace(r"\{", "").replace(r"\}", "").count(
        "}"
    )
    for body in re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", text, re.S):
        columns = len(re.match(r"\\begin\{tabular\}\{(\w+)\}", body)[1])
        rows = [line for line in body.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
        assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in rows} == {columns}
    assert r"100\% {[}x\_y]" in text
    assert latex_text("~^\\") == r"\textasciitilde{}\textasciicircum{}\textbackslash{}"


@pytest.mark.latex
def test_latex_compiles(table: Table, tmp_path: Path) -> None:
    (tmp_path / "table.tex").write_text(as_text(table, "latex"))
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in done.stdout


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[int] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.cells.append(0)
        if tag in ("td", "th"):
            self.cells[-1] += int(dict(attrs).get("colspan", 1))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_well_formed_and_rectangular(table: Table) -> None:
    parser = _Tags()
    text = as_text(table, "html")
    parser.feed(text)
    assert parser.open == []
    assert set(parser.cells) == {6, 9}
    assert "KL(A &gt; 0 ∧ ΔH &lt; 0)" in text
    assert text.count('class="missing none" colspan="5">not measured') == 1
    assert text.count('class="missing') == 2  # the row that was not run, and the baseline's own delta


@pytest.mark.parametrize(
    ("cell", "kind", "value", "interval"),
    [
        (Cell(), Kind.SCORE, "–", ""),
        (Cell(12.345, 10.0, 14.6), Kind.SCORE, "12.3", "±2.3"),
        (Cell(0.0), Kind.SCORE, "0.0", ""),
        (Cell(0.0, 0.0, 1.8), Kind.SCORE, "0.0", "[0.0, 1.8]"),
        (Cell(34.7, 2.0, 100.0), Kind.SCORE, "34.7", "[2.0, 100.0]"),
        (Cell(99.5, 97.6, 100.0), Kind.SCORE, "99.5", "[97.6, 100.0]"),
        (Cell(50.0, 0.0, 100.0), Kind.SCORE, "50.0", "±50.0"),
        (Cell(-1.26, -3.0, 0.5), Kind.DELTA, "−1.3", "[−3.0, 0.5]"),
        (Cell(0.01), Kind.DELTA, "0.0", ""),
        (Cell(-0.01, -0.02, 0.02), Kind.DELTA, "0.0", "[0.0, 0.0]"),
        (Cell(2.0), Kind.DELTA, "+2.0", ""),
        (Cell(text="better"), Kind.TEXT, "better", ""),
    ],
)
def test_numbers_as_text(cell: Cell, kind: Kind, value: str, interval: str) -> None:
    column = Column("x", "x", kind)
    assert format_value(cell, column, 1) == value
    assert format_interval(cell, column, 1) == interval


@pytest.mark.parametrize("label", ["TEPO", "KL on all tokens, beta=0.01, learning_rate=1e-4"])
@pytest.mark.parametrize("width", [80, 100, 120])
def test_terminal_keeps_label_and_average_whole_on_a_line(table: Table, width: int, label: str) -> None:
    measured = table.blocks[0]
    wide = [Column(f"b{index}", f"benchmark {index}") for index in range(6)]
    rows = tuple(
        replace(row, label=f"{label} {index}", cells=(*[row.cells[0]] * 6, *row.cells))
        for index, row in enumerate(measured.rows)
    )
    block = replace(measured, columns=(*wide, *measured.columns), rows=rows)
    at = next(index for index, column in enumerate(block.columns) if column.key == "average")
    text = as_text(replace(table, blocks=(block,)), "terminal", width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text
    for row in rows[:3]:
        line = next(line for line in lines if line.startswith(row.label))
        assert line.removeprefix(row.label).split()[0] == f"{row.cells[at].mean:.1f}"
        assert f"{row.cells[at].mean:.1f}" in line
    for column in block.columns:
        assert column.title in text
