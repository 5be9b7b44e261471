"""A page about hundreds of runs is small, and draws nothing that is folded."""

from dataclasses import replace
from pathlib import Path

import pytest

from tepo.reporting.charts.style import Looks
from tepo.reporting.page import PageContent, PageHead, PageStudy, build_page
from tepo.reporting.page.runs import PageRun
from tepo.reporting.tables.table import Table
from tests.unit.reporting.chromium import Page
from tests.unit.reporting.pages import curves_chart, metrics

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

ROWS, SEEDS, STEPS, CHARTS = 60, 3, 36, 4


def test_a_large_page_is_small_and_draws_what_is_opened(table: Table, tmp_path: Path, window: Page) -> None:
    looks: Looks = {f"row {number}, learning_rate={number}e-5": (f"method {number}", None) for number in range(ROWS)}
    one = curves_chart("", metrics(looks, SEEDS, STEPS), looks)
    curves = [replace(one, name=f"curves-{number}") for number in range(CHARTS)]
    runs = [
        PageRun(f"{label}-{seed}", label, name, seed, {"seed": seed, "objective": {"name": name}}, "finished")
        for label, (name, _) in looks.items()
        for seed in range(SEEDS)
    ]
    path = tmp_path / "page.html"
    path.write_text(build_page(PageContent(PageHead("Large"), [PageStudy(table, curves)], runs)), encoding="utf-8")
    assert path.stat().st_size < 3_000_000
    window.open(path, 400)
    window.ready()
    assert window.run("return typeof vegaEmbed") == "undefined", "nothing to draw"
    window.one("details:has(> figure) > summary").click()
    window.ready()
    assert len(window.all(".chart-wrapper svg")) == 1
    panels, each = 3, 1 + SEEDS
    assert len(window.all("path[aria-roledescription='line mark']")) == panels * ROWS * each
    assert window.outside() == []
    window.one("#runs-fold summary").click()
    window.wait("return document.querySelectorAll('#runs tbody tr').length === arguments[0]", ROWS)
