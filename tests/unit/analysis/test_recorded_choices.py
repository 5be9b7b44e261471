"""The framed choice on the page of recorded studies is what `tepo table` prints of them."""

import csv
import html
import io
import re
from pathlib import Path

import pytest

from tepo.analysis.page import page, render_all
from tepo.reporting.tables.render import as_text
from tepo.reporting.tables.table import Table
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts

pytestmark = pytest.mark.disaster  # it reads 500 runs

SEEDS = {"lengths": 3, "tuned": 8}


def framed(text: str, name: str) -> list[tuple[str, str]]:
    """Verdict and difference of each strip of a study, as they stand without scripts."""
    part = text.partition(f'id="choices-{name}"')[2].partition("</details>")[0]
    said = re.findall(r'<tr class="said">.*?<span>([^<]*)</span></th>', part)
    return [tuple(html.unescape(one).split("; ")) for one in said]


def printed(table: Table, column: str) -> list[tuple[str, str]]:
    """The same in the table."""
    words = [line["text"] for line in csv.DictReader(io.StringIO(as_text(table, "csv"))) if line["column"] == column]
    text = as_text(table, "markdown").replace("\\", "")
    lines = [line.removesuffix(" |").split(" | ") for line in text.splitlines() if line.startswith("|")]
    (place,) = {line.index(title) for line in lines for title in ("Δ", "Δ Avg.") if title in line}
    words = [word for word in words if word not in ("", "baseline")]
    return list(zip(words, [line[place] for line in lines if set(words) & set(line)], strict=True))


def test_it_is_what_the_tables_print(tmp_path: Path) -> None:
    planned = plan_all(["lengths", "tuned", "claims"], "laptop", store=tmp_path)
    planned, facts = read_facts(planned, "laptop", records=True)
    rendered = render_all(planned, facts, "laptop")
    text = page(rendered)
    tables = {study.table.name: study.table for study in rendered.studies}
    for name, seeds in SEEDS.items():
        assert framed(text, name) == printed(tables[name], "verdict")
        assert f'<th scope="colgroup" colspan="4">all {seeds}</th>' in text
    assert len(framed(text, "lengths")) == 12
    assert len(framed(text, "tuned")) == 7
    assert framed(text, "registered") == [], "claims are judged by their own rule alone"
