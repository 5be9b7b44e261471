import csv
import html
import io
import re
import runpy
import shlex
from pathlib import Path

import pytest

from tepo.analysis.page import page, render_all
from tepo.analysis.results_document import write_results
from tepo.analysis.study_result import StudyResult
from tepo.analysis.tables import study_table
from tepo.reporting.tables.render import as_text, markdown_text
from tepo.studies.plan import family_of
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
    files = ({one.name: current(one) for one in folder.glob(f"{WRITTEN.stem}*")} for folder in (tmp_path, DOCS))
    written, committed = files
    assert written == committed, f"--results docs/{WRITTEN.name} --store FOLDER_WITHOUT_RUNS: {COMMAND}"


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


NAMES = ["lengths", "repeats"]  # with a baseline, several settings, and records
WORDS = re.compile(r"(?:better|worse|not decided) \(p [=<] [\d.]+\)|[12] seeds?: no verdict|not comparable")
INTERVAL = re.compile(r"\[−?\d+\.\d, −?\d+\.\d\]")


def said(text: str) -> tuple[list[str], list[str]]:
    """Verdicts with their p, and intervals; on a page the columns have another order."""
    return sorted(WORDS.findall(text)), sorted(INTERVAL.findall(text))


def section(text: str, name: str) -> str:
    """The table of a study on a page, as text."""
    found = re.search(rf'<details class="fold result[^"]*" id="table-{name}".*?</details>', text, re.DOTALL)
    assert found
    return html.unescape(re.sub(r"<[^>]+>", "", found[0]))


@pytest.mark.disaster
def test_in_every_format_on_every_page_and_in_every_document(tmp_path: Path) -> None:
    planned, facts = read_facts(plan_all(NAMES, "laptop", store=tmp_path), records=True)
    together = render_all(planned, facts)
    write_results(tmp_path / "results.md", together, planned, facts, "tepo report")
    whole, document = page(together), (tmp_path / "results.md").read_text()
    tables = {study.name: study_table(study, units, facts) for study, units in planned}
    lines = StudyResult(planned, facts, tuple(tables.values())).table
    for study, units in planned:
        table = tables[study.name]
        expected = said(as_text(table, "markdown").replace("\\", ""))
        assert len(expected[0]) == family_of(study, units) > 4
        alone = page(render_all([(study, units)], facts))
        assert said(as_text(table, "terminal", 1000)) == expected
        assert said(section(alone, study.name)) == said(section(whole, study.name)) == expected
        part = document.partition(f"## {markdown_text(table.title)}\n")[2].partition("\n## ")[0].replace("\\", "")
        assert said(part)[0] == expected[0]
        cells = [line["text"] for line in csv.DictReader(io.StringIO(as_text(table, "csv")))]
        assert sorted(cell for cell in cells if WORDS.fullmatch(cell)) == expected[0]
        mine = lines[(lines["study"] == study.name) & lines["p"].notna()]
        assert mine["p"].tolist() == pytest.approx([one.measured.p for one in table.comparisons if one.measured])


@pytest.mark.disaster
@pytest.mark.parametrize("given", [{}, {"seeds": [0]}])
def test_the_family_of_a_tuned_study_is_declared_before_anything_is_chosen(given: dict, tmp_path: Path) -> None:
    ((study, units),) = plan_all(["tuned"], "laptop", store=tmp_path, **given)
    assert all(unit.tuning for unit in units)
    assert family_of(study, units) == 7
    ((study, units),), _ = read_facts(plan_all(["tuned"], "laptop", store=tmp_path), records=True)
    assert family_of(study, units) == 7
