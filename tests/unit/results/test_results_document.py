"""Documents of results: what is committed is what its command writes from the records today."""

import shlex
from pathlib import Path

import pytest

from tepo.results.page import render_all
from tepo.results.results_document import write_results
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts
from tests.unit.test_documentation import ROOT

DOCS = ROOT / "docs"
WRITTEN = DOCS / "results-comparison.md"
COMMAND = WRITTEN.read_text(encoding="utf-8").split("Written by `")[1].partition("`")[0]


@pytest.mark.disaster  # reads and compares a thousand runs
def test_the_document_and_its_pictures_are_current(tmp_path: Path) -> None:
    names = [word for word in shlex.split(COMMAND)[2:] if not word.startswith("-")]
    planned, facts = read_facts(plan_all(names, "laptop", store=tmp_path / "runs"), "laptop", records=True)
    path = tmp_path / WRITTEN.name
    write_results(path, render_all(planned, facts, "laptop"), planned, facts, "laptop", COMMAND)
    written = {one.name: one.read_text(encoding="utf-8") for one in tmp_path.glob(f"{WRITTEN.stem}*")}
    committed = {one.name: one.read_text(encoding="utf-8") for one in DOCS.glob(f"{WRITTEN.stem}*")}
    assert sorted(written) == sorted(committed)
    stale = [name for name, text in written.items() if text != committed[name]]
    assert stale == [], f"run it again with --results docs/{WRITTEN.name} --store FOLDER_WITHOUT_RUNS: {COMMAND}"


def test_the_first_page_shows_what_was_found() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("opening", "stability-1-map"):
        assert f"](docs/{WRITTEN.stem}-{name}.svg)" in text
        assert (DOCS / f"{WRITTEN.stem}-{name}.svg").is_file()
