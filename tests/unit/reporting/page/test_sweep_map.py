"""The map of a sweep: order, hatching, its drawing; in a real browser its cells, its slider and its keys."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tepo.reporting.figures.curves import STEP, RunCurves
from tepo.reporting.page import PageFigure, PageStudy, build_page
from tepo.reporting.page.charts import chart_data
from tepo.reporting.page.head import PageHead
from tepo.reporting.page.map_drawing import map_figure
from tepo.reporting.page.sweep_map import CellRuns, SweepMap, sweep_maps
from tepo.reporting.tables.sweep_table import LOST, sweep_title
from tepo.reporting.tables.table import MISSING, SAME, Block, Cell, Column, Table, TableRow
from tests.unit.reporting.chromium import SHEET, Page

RATES = ("1e-4", "4e-4", "1e-3")
SCORES = {"falls": (70.0, 30.0, 0.5), "stands": (68.0, 66.0, 60.0), "not run": (None, None, None)}
TITLE = sweep_title("rate", "")


def ending(label: str, rate: str, seed: int) -> str:
    return "collapse at step 5" if label == "falls" and rate == "1e-3" and seed else ""


@pytest.fixture(scope="module")
def table() -> Table:
    def cell(score: float | None) -> Cell:
        return MISSING if score is None else Cell(score, score - 1, score + 1)

    rows = tuple(TableRow(label, label, tuple(map(cell, scores)), "tepo") for label, scores in SCORES.items())
    grid = Block(TITLE, tuple(Column(f"rate={rate}", rate) for rate in RATES), rows, axis="rate")
    lost = [TableRow(label, label, (Cell(value),), "tepo") for label, value in (("falls", 36.5), ("stands", 3.3))]
    return Table("rates", "Rates", (grid, Block("Borne", (Column(LOST, "Lost"),), tuple(lost))))


@pytest.fixture(scope="module")
def maps(table: Table) -> Sequence[SweepMap]:
    known = {
        (TITLE, label, rate): CellRuns(
            f"rates-{rate}", label, tuple((seed, f"{label}-{seed}", ending(label, rate, seed)) for seed in (0, 1)), True
        )
        for label in ("falls", "stands")
        for rate in RATES
    }
    return sweep_maps(table, known)


def test_the_rows_that_lose_least_come_first_and_what_was_not_run_last(maps: Sequence[SweepMap]) -> None:
    assert [(row.label, row.lost) for row in maps[0].rows] == [("stands", 3.3), ("falls", 36.5), ("not run", None)]


def test_a_cell_says_how_many_of_its_runs_ended_early(maps: Sequence[SweepMap]) -> None:
    assert [cell.ended for cell in maps[0].rows[1].cells] == ["", "", "1 of 2 ended"]
    saturated = CellRuns("", "a", ((0, "x", "saturation at step 3"),))
    assert saturated.ended == 0, "all right is no failure"


def test_the_drawing_has_the_cells_of_the_map_and_hatches_those_that_ended(maps: tuple[SweepMap, ...]) -> None:
    figure = map_figure(maps[0])
    (axes,) = figure.axes
    words = [text.get_text() for text in axes.texts]
    assert words[:5] == ["1e-4", "4e-4", "1e-3", "loses", "stands"]
    for row in maps[0].rows:
        assert {row.label, *(cell.text for cell in row.cells)} <= set(words)
    assert [bool(cell.get_hatch()) for cell in axes.patches] == [
        bool(c.ended) for row in maps[0].rows for c in row.cells
    ]
    assert "Hatched: runs ended early." in figure.texts[-1].get_text()
    renderer = FigureCanvasAgg(figure).get_renderer()
    heads = [text.get_window_extent(renderer) for text in axes.texts[:4]]
    assert all(left.x1 < right.x0 for left, right in pairwise(heads))


def test_rows_that_are_alike_are_marked(table: Table) -> None:
    grid, lost = table.blocks
    rows = tuple(replace(row, label=f"{row.label} {SAME}") if row.key == "falls" else row for row in grid.rows)
    (one,) = sweep_maps(replace(table, blocks=(replace(grid, rows=rows), lost)), {})
    assert [(row.label, row.same) for row in one.rows] == [("stands", False), ("falls", True), ("not run", False)]


@pytest.fixture(scope="module")
def path(table: Table, maps: tuple[SweepMap, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    figures = []
    for rate in RATES:
        runs = []
        for label in ("falls", "stands"):
            for seed in (0, 1):
                early = bool(ending(label, rate, seed))
                steps = range(1, 5 if early else 21)
                rows = [{STEP: step, "critic/score/mean": 0.5, "actor/entropy": 1 / step} for step in steps]
                runs.append(RunCurves(label, "tepo", seed, rows, ended=early))
        figures.append(PageFigure(f"rates-{rate}", f"Training curves: rate={rate}", charts=chart_data(runs)))
    path = tmp_path_factory.mktemp("map") / "page.html"
    path.write_text(build_page(PageHead("Rates"), [PageStudy(table, tuple(figures), maps)], []), encoding="utf-8")
    return path


@pytest.fixture
def page(window: Page, path: Path) -> Page:
    window.open(path)
    window.wait("return document.querySelectorAll('button.cell').length === 9")
    return window


def lines(page: Page) -> list[str]:
    return page.run("return [...document.querySelectorAll('.map tbody th .label span')].map((one) => one.textContent)")


@pytest.mark.chromium
@pytest.mark.slow
def test_a_cell_shows_the_curves_of_its_seeds_by_keyboard(page: Page) -> None:
    page.run("document.querySelector('button.cell').focus()")
    page.press("ArrowDown", "End", "Enter")
    page.wait("return document.querySelectorAll('.seeds .chart canvas').length === 2")
    panel = page.one(".seeds")
    assert panel.text.startswith("falls at rate=1e-3: 0.5")
    assert "seed 1: collapse at step 5" in panel.text
    assert "responses of these runs were not kept" in panel.text
    assert page.texts(".seeds .legend .row") == ["seed 0", "seed 1"]
    assert page.violations() == []
    page.press("Enter")
    assert not panel.is_displayed(), "the same cell again closes it"


@pytest.mark.chromium
@pytest.mark.slow
def test_the_slider_sorts_the_rows_by_the_value_that_is_picked(page: Page) -> None:
    assert lines(page) == ["stands", "falls", "not run"]
    page.choose(".pick input", "1", "input")
    assert lines(page) == ["falls", "stands", "not run"]
    assert (
        page.one(".pick output").text
        == "1e-4: falls 70.0 is highest, stands 68.0 lowest; 2 of 2 within 4 points of the highest"
    )
    page.choose(".pick input", "0", "input")
    assert lines(page) == ["stands", "falls", "not run"]


@pytest.mark.chromium
@pytest.mark.slow
def test_the_map_fits_a_phone_and_a_sheet_and_is_there_without_scripts(page: Page, path: Path) -> None:
    page.open(path, 400)
    assert page.outside() == []
    assert page.cut() == []
    page.screen(SHEET, media="print")
    assert page.cut() == []
    closed = (
        "return [...document.querySelectorAll('details:not([open])')].filter((one) => one.checkVisibility()).length"
    )
    assert page.run(closed) == 0, "no closed triangle is printed"
    page.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(path)
        assert page.texts(".map td") == ["68.0", "66.0", "60.0", "70.0", "30.0", "0.5\n1 of 2 ended", "–", "–", "–"]
        assert page.all("button.cell") == []
    finally:
        page.command("Emulation.setScriptExecutionDisabled", value=False)
