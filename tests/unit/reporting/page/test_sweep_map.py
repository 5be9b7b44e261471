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
from tepo.reporting.page.excerpts import shown_excerpt
from tepo.reporting.page.head import PageHead
from tepo.reporting.page.map_drawing import map_figure
from tepo.reporting.page.sweep_map import CellRuns, SweepMap, sweep_maps
from tepo.reporting.tables.sweep_table import LOST
from tepo.reporting.tables.table import MISSING, SAME, Block, Cell, Column, Table, TableRow
from tepo.store.early_stop import Ending
from tepo.store.excerpt import Again, Excerpt, Passage
from tepo.store.stored_tokens import parse_dump
from tests.unit.reporting.chromium import SHEET, Page

HOSTILE = "</script><img src=x onerror=alert(1)>\t"
RATES = ("1e-4", "4e-4", "1e-3")
SCORES = {"falls": (70.0, 30.0, 0.5), "stands": (68.0, 66.0, 60.0), "not run": (None, None, None)}
TITLE = "Average accuracy by rate"


def ending(label: str, rate: str, seed: int) -> str:
    return "collapse at step 5" if label == "falls" and rate == "1e-3" and seed else ""


def quoted() -> Excerpt:
    """Of a run made again that went another way; one token would break careless HTML."""

    def passage(step: int, reward: float, *tokens: str) -> Passage:
        response = {"prompt": "1+2=", "answer": "3", "reward": float(step < 3), "finished": step < 3, "tokens": tokens}
        changes = [(-0.2, 0.2, None, 0.01)[place % 4] for place in range(len(tokens))]
        values = {"entropy": [0.5] * len(tokens), "entropy_change": changes}
        responses = [{**response, "tokens": list(tokens), "values": values}] * 2
        return Passage(reward, parse_dump({"format": 1, "step": step, "objective": "gpg", "responses": responses}))

    again = Again(({"started": "2026-03-04T10:00:00+00:00"},), 2)
    before, after = passage(2, 0.31, "3", "<eos>"), passage(4, 0.02, "9", HOSTILE, "9", "9", "9")
    return Excerpt(before, after, Ending("collapse", 5, "all wrong"), again)


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
        ("", label, rate): CellRuns(
            f"rates-{rate}",
            label,
            tuple((seed, f"{label}-{seed}", ending(label, rate, seed)) for seed in (0, 1)),
            True,
            {"falls-1": quoted()} if (label, rate) == ("falls", "1e-3") else {},
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
    page.press("End", "Enter")
    page.wait("return document.querySelectorAll('.seeds .chart canvas').length === 2")
    assert "those of these runs were not kept" in page.one(".seeds").text
    page.press("Enter", "ArrowDown", "Enter")
    page.wait("return document.querySelectorAll('.seeds .chart canvas').length === 2")
    panel = page.one(".seeds")
    assert panel.text.startswith("falls at rate=1e-3: 0.5")
    assert "seed 1: collapse at step 5" in panel.text
    assert page.texts(".seeds .legend .row") == ["seed 0", "seed 1"]
    assert page.violations() == []
    page.press("Enter")
    assert not panel.is_displayed(), "the same cell again closes it"


def test_an_excerpt_is_in_the_colours_of_both_passages() -> None:
    shown = shown_excerpt("run", "falls", quoted())
    assert [level for level, _ in shown.passages[1].responses[0].tokens] == ["c6", "h6", "", "", "c6"]
    assert shown.passages[1].facts == "step 4, reward 0.02; it ended with collapse at step 5"
    assert shown.passages[1].responses[0].facts == "mean entropy 0.500, change −0.048, cut off at the length limit"
    assert "made again on 2026-03-04 with the same settings. From step 2 on its figures are others" in shown.origin
    same = replace(quoted(), again=Again(({"started": "2026-03-04T10:00:00+00:00"},), 0))
    assert "it equals the recorded one in all figures on record" in shown_excerpt("run", "falls", same).origin
    assert shown_excerpt("run", "falls", replace(quoted(), again=None)).origin == ""
    without = replace(quoted().before.dump.responses[0], values={}, tokens=["", "\n"])
    passage = Passage(0.1, replace(quoted().before.dump, responses=(without,)))
    bare = shown_excerpt("run", "falls", Excerpt(passage, passage, None))
    assert bare.passages[0].responses[0].tokens == (("", "∅"), ("", "↵\n"))


@pytest.mark.chromium
@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_a_cell_shows_what_a_run_answered_before_and_after(window: Page, path: Path, width: int, scheme: str) -> None:
    window.open(path, width, scheme=scheme)
    window.wait("return document.querySelectorAll('button.cell').length === 9")
    assert window.texts(".map .quoted") == ["responses"]
    assert window.all(".said i") == [], "nothing is drawn before a cell is opened"
    window.run("document.querySelector('button.cell:has(.quoted)').focus()")
    window.press("Enter")
    window.wait("return document.querySelectorAll('.passage').length === 2")
    said = "return [...document.querySelectorAll('.passage .said')].map((one) => one.textContent)"
    assert window.run(said) == ["3<eos>"] * 2 + [f"9{HOSTILE}".replace("\t", "→\t") + "999"] * 2
    assert window.all(".seeds img") == []
    assert window.texts(".answer b") == ["✓ right"] * 2 + ["✗ wrong"] * 2
    assert "run made again on 2026-03-04 with the same settings" in window.one(".excerpt").text
    surer, less_sure, same = (
        window.style(f".passage .said i{place}", "backgroundColor") for place in (".c6", ".h6", ":not([class])")
    )
    assert len({surer, less_sure, same}) == 3
    left, right = (one.rect for one in window.all(".passage"))
    assert (left["x"] < right["x"]) == (width > 600), "side by side, or under each other on a phone"
    assert (left["y"] < right["y"]) == (width < 600)
    assert window.violations() == []
    assert window.outside() == []
    window.screen(SHEET, media="print")
    assert window.one(".passage").is_displayed(), "what is open is printed"
    assert window.cut() == []


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
    assert page.all(".passage") == [], "what was not opened is not printed"
    page.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(path)
        fallen = "0.5\n1 of 2 ended\nresponses"
        assert page.texts(".map td") == ["68.0", "66.0", "60.0", "70.0", "30.0", fallen, "–", "–", "–"]
        (folded,) = page.all("noscript > details")
        assert folded.text == "Responses before and after: falls, rate=1e-3, seed 1"
        folded.find_element("css selector", "summary").click()
        assert [one.text for one in folded.find_elements("css selector", ".answer b")] == ["✓ right"] * 2 + [
            "✗ wrong"
        ] * 2
        assert page.all("details img") == []
        assert page.all("button.cell") == []
    finally:
        page.command("Emulation.setScriptExecutionDisabled", value=False)
