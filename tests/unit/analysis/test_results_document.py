import re
import runpy
import shlex
from pathlib import Path

import pytest

from tepo.analysis.charts import comparison_charts
from tepo.analysis.page import render_all
from tepo.analysis.results_document import shown_blocks, write_results
from tepo.evaluation.statistics.samples import AVERAGE
from tepo.reporting.charts.style import digest
from tepo.reporting.headline import headline
from tepo.reporting.page import PageContent, PageHead, PageStudy
from tepo.reporting.tables.table import VERDICT, Cell, Column, Kind, Table, TableBlock, TableRow
from tepo.store.facts import facts_from
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts
from tests.unit.test_documentation import ROOT

DOCS = ROOT / "docs"
WRITTEN = DOCS / "results-comparison.md"
COMMAND = WRITTEN.read_text(encoding="utf-8").split("Written by `")[1].partition("`")[0]


def current(path: Path) -> str:
    """What a file says: of a picture its hash, as fonts and versions move its bytes."""
    return path.read_text(encoding="utf-8").rpartition("<!-- chart ")[2]


@pytest.mark.disaster  # reads and compares a thousand runs
def test_the_document_and_its_pictures_are_current(tmp_path: Path) -> None:
    names = [word for word in shlex.split(COMMAND)[2:] if not word.startswith("-")]
    planned, facts = read_facts(plan_all(names, "laptop", store=tmp_path / "runs"), records=True)
    path = tmp_path / WRITTEN.name
    write_results(path, render_all(planned, facts), planned, facts, COMMAND)
    written, committed = (
        {one.name: current(one) for one in folder.glob(f"{WRITTEN.stem}*")} for folder in (tmp_path, DOCS)
    )
    how = f"run it again with --results docs/{WRITTEN.name} --store FOLDER_WITHOUT_RUNS: {COMMAND}"
    assert written == committed, how


@pytest.mark.parametrize("page", ["results.md", "paper.md"])
def test_every_difference_that_is_told_is_printed(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A figure that a change of the statistics or of a study moved is found here: it is in no table then, nor printed
    by the example. The first page has the table of the language model, which has a test of its own."""
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    told = re.findall(r"−?\d+\.\d \[−?\d+\.\d, −?\d+\.\d\]", text)
    assert told
    script = runpy.run_path(str(ROOT / "examples/records_arithmetic.py"))
    script["laptop"]()
    script["language_model"]()
    tables = WRITTEN.read_text(encoding="utf-8").replace("\\", "") + (ROOT / "README.md").read_text(encoding="utf-8")
    known = tables + capsys.readouterr().out
    assert [one for one in told if one not in known] == []


def row(label: str, *cells: str | float) -> TableRow:
    """Words, and percent with an interval of a point to either side."""
    typed = (Cell(text=cell) if isinstance(cell, str) else Cell(cell, cell - 1, cell + 1) for cell in cells)
    return TableRow(label, label, tuple(typed))


NOTHING = facts_from([], [], [])
SCORES = (Column("add3", "add3"), Column(AVERAGE, "Avg."))
MEASURED = (*SCORES, Column("delta", "Δ Avg.", Kind.DELTA), Column(VERDICT, "Verdict", Kind.TEXT))
FIRST = TableBlock("Measured: a", MEASURED, (row("one, a", 10, 50, 0, "baseline"), row("two, a", 20, 51, 1, "worse")))
SECOND = TableBlock("Measured: b", MEASURED[1:], (row("two, b", 52, 2, "better"),))  # on other benchmarks
PLAIN = TableBlock("Measured", SCORES, (row("one", 10, 50),))
SWEEP = TableBlock("Average by rate", (Column("rate=1", "1"),), (row("one", 50),), axis="rate")
DRAWN = TableBlock("Over bases", (Column("these", "Δ", Kind.DELTA),), (row("two", 3),), drawn="base")
OTHER = TableBlock("Tried", (Column("k", "k = 1"),), (row("one", 60),), notes=("long",))


@pytest.mark.parametrize(
    ("blocks", "title", "columns", "rows"),
    [
        ((SWEEP, FIRST, SECOND, OTHER), "Measured: a", ["Avg.", "Δ Avg.", "Verdict"], ["one, a", "two, a", "two, b"]),
        ((DRAWN, SWEEP, FIRST), "Over bases", ["Δ"], ["two"]),
        ((SWEEP, PLAIN, OTHER), "Average by rate", ["1"], ["one"]),
        ((PLAIN, OTHER), "Measured", ["Avg."], ["one"]),
        ((OTHER,), "Tried", ["k = 1"], ["one"]),
    ],
    ids=["verdicts", "drawn", "sweep", "averages", "another"],
)
def test_a_table_is_cut_to_what_it_decides(
    blocks: tuple[TableBlock, ...], title: str, columns: list[str], rows: list[str]
) -> None:
    (block,) = shown_blocks(Table("study", "A study", blocks))
    assert (block.title, [column.title for column in block.columns]) == (title, columns)
    assert ([row.label for row in block.rows], block.notes) == (rows, ())
    assert all(len(row.cells) == len(columns) for row in block.rows)


def test_a_study_is_its_title_its_finding_and_one_table(tmp_path: Path) -> None:
    table = Table("study", "A_study", (FIRST, OTHER), notes=("generic",))
    (picture,) = comparison_charts(Table("study", "A_study", (FIRST,)))
    rendered = PageContent(
        PageHead("Title", scales="laptop", ran="Two runs.", caveat="No more."), [PageStudy(table)], pictures=[picture]
    )
    write_results(tmp_path / "results.md", rendered, [], NOTHING, "tepo report study")
    opening, _, study = (tmp_path / "results.md").read_text(encoding="utf-8").partition("## A\\_study\n\n")
    assert opening.startswith("# Results at laptop scale\n\nWritten by `tepo report study`.\n\n![")
    assert "\n\nTwo runs. No more.\n\n" in opening
    assert (
        study
        == f"""**{headline(table)}.**

**Measured: a**

|  | Avg. | Δ Avg. | Verdict |
| :-- | --: | --: | :-- |
| one, a | 50.0 ±1.0 | 0.0 \\[−1.0, 1.0\\] | baseline |
| two, a | 51.0 ±1.0 | +1.0 \\[0.0, 2.0\\] | worse |
"""
    )
    (drawn,) = tmp_path.glob("*.svg")
    assert drawn.name == "results-opening.svg"
    assert drawn.read_text(encoding="utf-8").endswith(f"<!-- chart {digest(picture.chart)} --></svg>")
