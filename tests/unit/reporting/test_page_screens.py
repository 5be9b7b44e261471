"""The page on a phone, a tablet, a desk and paper, light and dark, by keyboard and with axe-core: in a real browser."""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tepo.reporting.table import Table
from tests.unit.reporting.browser import chromium, emulate, press
from tests.unit.reporting.pages import page, page_of_many

pytestmark = [pytest.mark.chromium, pytest.mark.axe, pytest.mark.slow]

SHEET = 687  # CSS pixels of the 182 mm between the margins of A4
OUTSIDE = """return [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility()
    && (!one.closest(".scroll") || one.matches(".scroll")) && !one.closest("svg, .sr, .skip")
    && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 80))"""
CUT = """return [...document.querySelectorAll(".scroll")].filter((one) => one.checkVisibility()
    && one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent.slice(0, 80))"""
CONTROLS = """return [...document.querySelectorAll("a[href], button, select, input, summary, [tabindex='0']")]
    .filter((one) => one.checkVisibility() && !one.closest(".skip") && (one.type !== "radio" || one.checked)
        && !one.disabled && !one.dataset.reached).map((one) => one.outerHTML.slice(0, 80))"""
VIOLATIONS = """const done = arguments[0];
    axe.run({resultTypes: ["violations"]}).then((result) => done(result.violations.flatMap(
        (one) => one.nodes.map((node) => `${one.id}: ${node.target} ${node.failureSummary}`))));"""
SMALLEST = """return Math.min(...[...document.querySelectorAll(".forest *")]
    .map((one) => parseFloat(getComputedStyle(one).fontSize)))"""
LOWER_END = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
LABELS = """const scroll = document.querySelector("#table-panel_e .scroll"), head = scroll.querySelector("tbody th");
    const box = scroll.getBoundingClientRect(), share = head.getBoundingClientRect().width / box.width;
    scroll.scrollLeft = 200;
    return [share, head.getBoundingClientRect().left - box.left]"""
PAGE_RULES = """return [...document.styleSheets[0].cssRules]
    .filter((rule) => rule instanceof CSSPageRule).map((rule) => rule.cssText)"""
TIP = "const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.textContent"
TIP_SEEN = """const box = document.getElementById("tip").getBoundingClientRect();
    return box.left >= 0 && box.right <= innerWidth"""
FOCUS_COPY = """[...document.querySelectorAll("#table-panel_e .copy button")]
    .find((one) => one.textContent === arguments[0]).focus()"""
SAID = "return document.querySelector('.copy [role=status]').textContent"
TEXT_AREA = """const area = document.createElement("textarea");
    area.id = "pasted";
    document.body.append(area);
    area.focus()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def address(table: Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(table), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(autouse=True)
def quiet(browser: Any) -> Iterator[None]:
    """No test may leave a word on the console."""
    yield
    assert browser.get_log("browser") == []


@cache
def axe() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_every_screen_holds_it_and_axe_finds_nothing(browser: Any, address: str, width: int, scheme: str) -> None:
    emulate(browser, width=width, scheme=scheme)
    browser.get(address)
    assert browser.execute_script("return [document.documentElement.scrollWidth <= innerWidth]") == [True]
    assert browser.execute_script(OUTSIDE) == []
    assert browser.execute_script(SMALLEST) >= 10
    browser.execute_script(axe())
    assert browser.execute_async_script(VIOLATIONS) == []


def test_the_first_screen_of_a_phone_shows_what_differs_and_by_how_much(browser: Any, address: str) -> None:
    emulate(browser, width=400)
    browser.get(address)
    for selector in ("h1", ".facts", "#findings li", ".forest tbody tr:last-child .verdict"):
        assert 0 < browser.execute_script(LOWER_END, selector) <= 900, selector


def test_the_narrowest_screen_needs_no_scrolling_sideways(browser: Any, address: str) -> None:
    emulate(browser, width=320)
    browser.get(address)
    assert browser.execute_script(OUTSIDE) == []


def test_labels_stay_in_sight_and_leave_room_for_numbers(browser: Any, address: str) -> None:
    emulate(browser, width=400)
    browser.get(address)
    share, moved = browser.execute_script(LABELS)
    assert share < 0.45
    assert moved == 0


def test_on_paper_nothing_is_cut_and_pages_have_numbers(browser: Any, address: str) -> None:
    emulate(browser, width=SHEET, media="print")
    browser.get(address)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= SHEET
    assert browser.execute_script(CUT) == []
    assert browser.execute_script("return getComputedStyle(document.querySelector('h2')).breakAfter") == "avoid"
    assert any("counter(page)" in rule for rule in browser.execute_script(PAGE_RULES))


def test_every_control_is_reached_by_keyboard(browser: Any, address: str) -> None:
    emulate(browser, width=800)
    browser.get(address)
    reach = "const one = document.activeElement; one.dataset.reached = 1; return one === document.body"
    for _ in range(500):
        press(browser, "Tab")
        if browser.execute_script(reach):
            break
    assert browser.execute_script(CONTROLS) == []


def tip(browser: Any) -> str:
    return browser.execute_script(TIP)


def test_tooltips_by_keyboard(browser: Any, address: str) -> None:
    emulate(browser, width=400)
    browser.get(address)
    browser.execute_script("document.querySelector('#table-panel_e td[tabindex=\"0\"]').focus()")
    first = tip(browser)
    for part in ("GRPO/DAPO, add3: ", "95% interval", "n = 320 responses", "seeds 0, 1"):
        assert part in first
    press(browser, "ArrowRight")
    assert "GRPO/DAPO, gcd: " in tip(browser)
    press(browser, "ArrowDown")
    assert "TEPO-w/o. KL, gcd: " in tip(browser)
    press(browser, "End")
    assert "Δ Avg.: " in tip(browser)
    assert browser.execute_script(TIP_SEEN)
    assert browser.execute_script("return document.activeElement.getAttribute('aria-describedby')") == "tip"
    press(browser, "Escape")
    assert tip(browser) == ""


@pytest.mark.parametrize(
    ("name", "part"), [("Markdown", "| GRPO/DAPO |"), ("LaTeX", r"\toprule"), ("CSV", "block,section,row")]
)
def test_a_table_is_copied(browser: Any, address: str, name: str, part: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    emulate(browser, width=800)
    browser.get(address)
    browser.execute_script(FOCUS_COPY, name)
    press(browser, "Enter")
    WebDriverWait(browser, 5).until(lambda _: browser.execute_script(SAID) == "copied")
    browser.execute_script(TEXT_AREA)
    event = {"key": "v", "code": "KeyV", "modifiers": 2, "commands": ["paste"]}
    browser.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", **event})
    assert part in browser.execute_script("return document.getElementById('pasted').value")


def test_a_row_leads_to_its_run_and_its_command(browser: Any, address: str) -> None:
    emulate(browser, width=800)
    browser.get(address + "#run-run-2")
    assert browser.execute_script("return document.getElementById('run-run-2').open")
    browser.execute_script("location.hash = '#run-run-1'")
    opened = "const done = arguments[0]; setTimeout(() => done(document.getElementById('run-run-1').open), 50)"
    assert browser.execute_async_script(opened)


def test_fifty_runs_within_five_seconds_and_ten_megabytes(browser: Any, table: Table, tmp_path: Path) -> None:
    path = tmp_path / "many.html"
    path.write_text(page_of_many(table, 50), encoding="utf-8")
    assert path.stat().st_size <= 10_000_000
    emulate(browser, width=1400)
    browser.get(path.as_uri())
    ready = browser.execute_script("return performance.getEntriesByType('navigation')[0].domComplete")
    assert 0 < ready <= 5000
    assert browser.execute_script("return document.querySelectorAll('details').length") >= 50
    emulate(browser, width=400)
    assert browser.execute_script(OUTSIDE) == []
    emulate(browser, width=SHEET, media="print")
    assert browser.execute_script(CUT) == []
