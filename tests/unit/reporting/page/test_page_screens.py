from pathlib import Path

import pytest

from tests.unit.reporting.chromium import Page
from tests.unit.reporting.pages import LONG

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

SEEN = "return arguments[0].filter((part) => document.querySelector(part).checkVisibility())"
DIM = """return [...document.querySelectorAll("figure:not([id$=map]) .chart :is(text, [stroke='#000000'])")]
    .map((one) => getComputedStyle(one)[one.matches("[stroke]") ? "stroke" : "fill"])
    .filter((colour) => Math.min(...colour.match(/[0-9]+/g)) < 120)"""
CUT_LABELS = """return [...document.querySelectorAll(".chart-wrapper text")].filter((one) => {
    const [own, whole] = [one, one.closest("svg")].map((each) => each.getBoundingClientRect());
    return own.left < whole.left - 1 || own.right > whole.right + 1 || one.textContent.includes("…");
    }).map((one) => one.textContent)"""
STICKY = """const scroll = document.querySelector("#table-panel_e .scroll"), head = scroll.querySelector("tbody th");
    scroll.scrollLeft = 200;
    const [box, own] = [scroll, head].map((one) => one.getBoundingClientRect());
    return own.left === box.left && own.width < 0.45 * box.width"""


@pytest.mark.parametrize("width", [320, 1400])
def test_every_screen_holds_it_and_labels_are_complete(path: Path, window: Page, width: int) -> None:
    window.open(path, width)
    window.unfold()
    assert window.outside() == window.run(CUT_LABELS) == []
    for figure in window.all("figure"):
        assert "".join(LONG.split()) in "".join(figure.get_property("textContent").split())
    assert window.run(STICKY)
    assert window.run(SEEN, [".fold summary", ".fold figcaption"]) == [".fold summary"], "a caption is said once"


@pytest.mark.axe
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light")])
def test_axe_finds_nothing_and_charts_can_be_read(path: Path, window: Page, width: int, scheme: str) -> None:
    window.open(path, width, scheme=scheme)
    window.unfold()
    assert window.violations() == []
    assert (window.run(DIM) == []) == (scheme == "dark")


def test_without_scripts_there_are_a_picture_and_tables(path: Path, window: Page) -> None:
    window.open(path, 400, scripts=False)
    for fold in window.all("main > section > details:not([open], .scripted) > summary"):
        fold.click()
    shown = [".chart svg[role=img]", "#table-panel_e table", "#figure-panel_e-curves noscript table", "#side noscript"]
    assert window.run(SEEN, [*shown, ".controls", "#runs-fold"]) == shown
    assert window.texts("#figure-panel_e-curves tbody th") == [LONG, "TEPO"]
    assert window.outside() == []
