"""Registered claims on the page: once, with their details on a click and their sentences on paper."""

import base64
import io
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tepo.reporting.figures.claims_figure import ClaimLine
from tepo.reporting.page import PageStudy, build_page
from tepo.reporting.page.head import PageHead
from tepo.reporting.tables.table import Block, Cell, Column, Kind, Table, TableRow
from tests.unit.reporting.chromium import SHEET, Page

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

HOLDS = ClaimLine("up", "It works", "A against B", "Seeds 100 to 107.", "points", "holds", 4.0, 3.0, 5.0)
LATER = ClaimLine("later", "It will work", "", "Not testable yet: it needs a machine.", "points")
REGION = ((2.0, math.inf),)


@pytest.fixture
def page(window: Page, tmp_path: Path) -> Page:
    column = Column("claim", "The claim", Kind.TEXT)
    rows = (TableRow("up", "up", (Cell(text="holds"),)), TableRow("later", "later", (Cell(text="not testable yet"),)))
    block = Block("Claims", (column,), rows, notes=("up: It works. A against B. Seeds 100 to 107.",))
    refuted = ClaimLine("down", "It fails", "C against B", "Alone.", "points", "refuted", -3.0, -4.0, -2.0, (), REGION)
    holds = ClaimLine(**{**vars(HOLDS), "regions": REGION})
    study = PageStudy(Table("registered", "Claims", (block,)), claims=(refuted, holds, LATER))
    path = tmp_path / "page.html"
    path.write_text(build_page(PageHead("Claims"), [study], []), encoding="utf-8")
    window.open(path, 400)
    return window


def test_each_claim_stands_once_with_its_details_on_a_click(page: Page) -> None:
    assert page.texts(".forest tbody th summary") == ["It works\nA against B", "It fails\nC against B"]
    assert page.texts(".forest .verdict") == ["holds", "refuted"]
    assert page.one("h1").text == "Of 1 registered claim 1 holds"
    assert page.all(".claim[open]") == []
    page.one(".forest summary").click()
    assert "Seeds 100 to 107." in page.one(".claim[open]").text
    assert page.texts(".waiting summary") == ["It will work"]
    assert page.run("return document.documentElement.outerHTML.split('Seeds 100 to 107.').length") == 2
    assert page.outside() == []
    assert page.violations() == []


def test_the_interval_lies_in_the_shaded_part_where_a_claim_holds(page: Page) -> None:
    script = """return [...document.querySelectorAll('.forest tbody .plot')].map((one) => {
        const [region, line] = ['.region', '.interval'].map((name) => one.querySelector(name).getBoundingClientRect());
        return line.left >= region.left && line.right <= region.right; })"""
    assert page.run(script) == [True, False]


@pytest.mark.parametrize("media", ["", "print"])
def test_the_zero_line_is_drawn_in_every_row(page: Page, media: str) -> None:
    """The lines behind a plot are written once, and drawn again in the other rows."""
    page.screen(media=media)
    script = """return [...document.querySelectorAll('.forest tbody .plot > svg')].map((one) => {
        one.querySelectorAll('.region, .interval, svg').forEach((part) => part.remove());
        const {left, top, width, height} = one.getBoundingClientRect();
        return {x: left + scrollX, y: top + scrollY, width, height, scale: 1}; })"""
    for clip in page.run(script):
        shot = page.command("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        grey = np.asarray(Image.open(io.BytesIO(base64.b64decode(shot))).convert("L")).astype(int)
        assert np.ptp(grey, axis=1).max() > 60
        assert (grey.min(axis=0) == grey.max(axis=0)).mean() > 0.9, "the lines are upright"


def test_on_paper_the_sentences_are_there(page: Page) -> None:
    page.screen(SHEET, media="print")
    assert page.texts(".forest tbody th summary") == ["It works\nA against B", "It fails\nC against B"]
    assert page.texts(".waiting summary") == ["It will work"]
    assert page.cut() == []
