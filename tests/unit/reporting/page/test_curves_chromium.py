"""The page's curves in a real browser: values by pointer and by keys, the legend, axes, a static drawing without
scripts and on paper."""

import itertools
from pathlib import Path

import pytest

from tepo.reporting.figures.curves import STEP, RunCurves
from tepo.reporting.page import PageFigure, PageStudy, build_page
from tepo.reporting.page.charts import chart_data
from tepo.reporting.page.head import PageHead
from tepo.reporting.tables.table import Table
from tests.unit.reporting.chromium import Page

pytestmark = [pytest.mark.chromium, pytest.mark.slow]


def run(label: str, method: str, seed: int, start: float, ended: bool = False) -> RunCurves:
    rows = [
        {STEP: step, "critic/score/mean": start + step / 100, "actor/entropy": 1 / step, "timing_s/step": 2.0}
        for step in range(1, 9 if ended else 21)
    ]
    return RunCurves(label, method, seed, rows, ended=ended)


@pytest.fixture(scope="module")
def path(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [
        run("GRPO/DAPO", "grpo_dapo", 0, 0.2),
        run("TEPO", "tepo", 0, 0.3),
        run("TEPO", "tepo", 1, 0.4),
        run("A row with a long label that needs a line of its own on a telephone", "gspo", 0, 0.1, ended=True),
    ]
    figure = PageFigure("curves", "Training curves", charts=chart_data(runs))
    path = tmp_path_factory.mktemp("curves") / "page.html"
    path.write_text(build_page(PageHead("Curves"), [PageStudy(table, (figure,))], []), encoding="utf-8")
    return path


@pytest.fixture
def page(window: Page, path: Path) -> Page:
    window.open(path)
    window.run("document.querySelector('figure.live').scrollIntoView()")
    window.wait("return document.querySelectorAll('figure .chart canvas').length === 2")
    return window


_INK = """
const chart = document.querySelectorAll('.chart canvas')[arguments[0]], copy = document.createElement('canvas');
[copy.width, copy.height] = [chart.width, chart.height];
const context = copy.getContext('2d', { willReadFrequently: true });
context.drawImage(chart, 0, 0);
const data = context.getImageData(0, 0, copy.width, copy.height).data, wanted = arguments[1];
let count = 0;
for (let i = 0; i < data.length; i += 4)
  count += wanted.every((part, at) => Math.abs(data[i + at] - part) < 12) && data[i + 3] > 200;
return count;
"""
_TICKS = "return document.querySelectorAll('.chart canvas')[1].toDataURL()"
_INVERTED = """
let element = document.querySelector(arguments[0]), count = 0;
for (; element; element = element.parentElement) count += getComputedStyle(element).filter !== "none";
return count"""
TEPO, GRPO = (213, 94, 0), (0, 0, 0)


def ink(page: Page, panel: int, colour: tuple[int, int, int]) -> int:
    """How many pixels of a chart have a colour."""
    return page.run(_INK, panel, list(colour))


def test_the_pointer_reads_all_rows_at_its_step(page: Page) -> None:
    page.point(".chart .u-over", 0, 0)
    page.wait("return document.querySelector('.tip:not([hidden])')")
    text = page.one(".tip:not([hidden])").text
    assert text.startswith("step 1")
    assert "TEPO" in text
    assert "GRPO/DAPO" in text
    assert " to " in text, "the range of two seeds"
    assert [tip for tip in page.texts(".tip") if tip] == [text], "only of the chart under the pointer"


def test_the_keys_read_and_say_the_same(page: Page) -> None:
    chart = page.one(".chart")
    chart.send_keys("\ue011")  # Home
    assert chart.get_attribute("aria-valuetext") == (
        "step 1: TEPO 36 (31 to 41); GRPO/DAPO 21; "
        "A row with a long label that needs a line of its own on a telephone 11"
    )
    chart.send_keys("\ue014\ue014")  # right, right
    assert chart.get_attribute("aria-valuenow") == "3"
    assert "step 3" in page.one(".tip:not([hidden])").text
    chart.send_keys("\ue010")  # End
    assert chart.get_attribute("aria-valuetext").startswith("step 20: TEPO 55 (50 to 60); GRPO/DAPO 40;")
    assert page.one(".chart").get_attribute("role") == "slider"
    assert page.one(".chart").get_attribute("aria-label") == "Reward, % right"


def test_a_legend_button_hides_its_row_in_all_charts(page: Page) -> None:
    assert all(ink(page, panel, TEPO) for panel in (0, 1))
    button = page.all(".legend button")[1]
    button.send_keys("\ue007")  # Enter
    assert button.get_attribute("aria-pressed") == "false"
    assert not any(ink(page, panel, TEPO) for panel in (0, 1))
    assert all(ink(page, panel, GRPO) for panel in (0, 1))
    page.one(".chart").send_keys("\ue011")
    assert "TEPO" not in page.one(".chart").get_attribute("aria-valuetext")
    page.all(".legend button")[-2].click()  # show all
    assert all(ink(page, panel, TEPO) for panel in (0, 1))


def test_axis_smoothing_and_scale_can_be_chosen(page: Page) -> None:
    assert [option.text for option in page.all("figure .against option")] == [
        "training step",
        "wall time of the steps (seconds)",
    ]
    page.choose("figure .against", "time")
    page.one(".chart").send_keys("\ue010")
    assert page.one(".chart").get_attribute("aria-valuetext").startswith("40 wall time")
    assert page.texts(".panel .axis") == ["wall time of the steps (seconds)"] * 2
    smooth = page.run(_TICKS)
    page.choose("figure .scale-of", "log")
    assert page.run(_TICKS) != smooth
    raw = ink(page, 1, TEPO)
    page.choose("figure [type=range]", "8", "input")
    assert ink(page, 1, TEPO) != raw
    assert page.one("figure output").text == "8"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_fits_every_screen_with_one_height_for_all(page: Page, path: Path, width: int, scheme: str) -> None:
    page.open(path, width, scheme=scheme)
    page.run("document.querySelector('figure.live').scrollIntoView()")
    page.wait("return document.querySelectorAll('figure .chart canvas').length === 2")
    assert len(set(page.run("return [...document.querySelectorAll('.uplot')].map((one) => one.offsetHeight)"))) == 1
    assert page.outside() == []
    for part in (".uplot canvas", ".legend line", ".swatch"):
        assert page.run(_INVERTED, part) == (scheme == "dark"), f"{part} has the colours of the curves"


_LABELS = """return [...document.querySelectorAll('.chart')]
    .map((box) => JSON.parse(box.dataset.labels).map((one) => one.top))"""


@pytest.mark.parametrize("width", [400, 1400])
def test_no_label_at_the_end_of_a_line_lies_on_another(page: Page, path: Path, width: int) -> None:
    page.open(path, width)
    page.run("document.querySelector('figure.live').scrollIntoView()")
    page.wait("return document.querySelectorAll('.chart[data-labels]').length === 2")
    for tops in page.run(_LABELS):
        assert len(tops) == 3
        assert all(abs(a - b) >= 12 for a, b in itertools.combinations(tops, 2))


def test_the_tooltip_leaves_the_plot_free(page: Page) -> None:
    page.point(".chart .u-over", 0, 0)
    page.wait("return document.querySelector('.tip:not([hidden])')")
    end = "return document.querySelector(arguments[0]).getBoundingClientRect()[arguments[1]]"
    assert page.run(end, ".tip:not([hidden])", "top") >= page.run(end, ".chart .u-over", "bottom")


def test_on_paper_and_without_scripts_there_is_the_drawing(page: Page, path: Path) -> None:
    assert page.all("figure .drawn") == [], "until it is printed"
    page.screen(media="print")
    page.run("dispatchEvent(new Event('beforeprint')); dispatchEvent(new Event('beforeprint'))")
    assert [one.is_displayed() for one in page.all("figure .drawn")] == [True]
    assert not page.one("figure .charts").is_displayed()
    page.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(path)
        assert page.one("figure .drawn").is_displayed()
        assert page.all("figure .charts") == []
    finally:
        page.command("Emulation.setScriptExecutionDisabled", value=False)
