"""The page in a real Chromium."""

import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tepo.reporting.tables.table import Table
from tests.unit.reporting.pages import LONG, NASTY, page

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

OUTSIDE = """const page = document.documentElement, sideways = page.scrollWidth > page.clientWidth ? ["the page"] : [];
    return sideways.concat([...document.querySelectorAll("body *")].filter((one) => one.checkVisibility()
    && !one.closest(".skip") && !one.parentElement.closest("svg, .scroll, .equation")
    && one.getBoundingClientRect().right > page.clientWidth + 1).map((one) => one.outerHTML.slice(0, 80)))"""
UNFOLD = "document.querySelectorAll('details:not(.vega-embed *)').forEach((one) => { one.open = true; })"
READY = """return !document.querySelector("#runs-fold[open]:not(:has(table))") &&
    [...document.querySelectorAll(".chart:not(:has(summary[aria-label]))")].every((one) => !one.checkVisibility())"""
VIOLATIONS = """const done = arguments[0];
    axe.run({resultTypes: ["violations"]}).then((result) => done(result.violations.flatMap(
        (one) => one.nodes.map((node) => `${one.id}: ${node.target} ${node.failureSummary}`))));"""
CHOOSE = """const select = document.querySelector(arguments[0]);
    select.value = [...select.options].find((one) => one.text.includes(arguments[1])).value;
    select.dispatchEvent(new Event("change"))"""
SEEN = """const box = document.querySelector(arguments[0])?.getBoundingClientRect();
    return box && box.top >= 0 && box.bottom <= innerHeight"""
VISIBLE = "return arguments[0].filter((part) => document.querySelector(part).checkVisibility())"
TEXTS = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"


class Window:
    def __init__(self, driver: Any, path: Path):
        self.driver, self.address, self.run = driver, path.as_uri(), driver.execute_script

    def open(self, width: int = 1400, *, part: str = "", scripts: bool = True, scheme: str = "light") -> None:
        """Load the page on a screen of this width. part: the id that the address ends with. scripts: False until the
        next page is loaded, as to a page whose scripts may run `noscript` is nothing."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get("about:blank")  # an address that differs in its part alone loads nothing
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
        self.driver.get(self.address + part)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return self.run(TEXTS, selector)

    def wait(self, script: str, *arguments: Any) -> Any:
        """What the script returns, once it is true; half a minute at most, for a machine that has other work."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 30, poll_frequency=0.05).until(lambda _: self.run(script, *arguments))


@pytest.fixture(scope="module")
def browser(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    """One Chromium for all tests."""
    from selenium import webdriver  # a development dependency

    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(table), encoding="utf-8")
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium") or ""  # both named, or selenium asks the network for them
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(300)  # seconds, of a machine that has other work
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    yield Window(driver, path)
    driver.quit()


@pytest.fixture
def window(browser: Window) -> Iterator[Window]:
    """The same window, on whose console no test may leave a word."""
    yield browser
    assert browser.driver.get_log("browser") == []


def test_a_link_to_a_run_opens_the_list_of_runs(window: Window) -> None:
    window.open(part="#run-run-2")
    window.wait(SEEN, "#run-run-2")
    window.run("scrollTo(0, 0); document.querySelector('#table-panel_e a').click()")
    window.wait(SEEN, "#run-run-1")
    assert len(window.all("#runs table")) == 1


def test_two_runs_side_by_side(window: Window) -> None:
    window.open()
    window.wait(READY)
    window.wait("return document.querySelector('#where').textContent && document.querySelector('#response span')")

    def sides() -> list[str]:
        return window.texts("#where, #answers h3, #answers b, #answers pre")

    right, wrong = "✓ right, 2 times, 1 token", "✗ wrong, 1 token, different"
    ours, of = f"{LONG}, seed 0: ", "of 2 responses to this problem right"
    assert sides() == ["1 of 1", f"{ours}2 {of}", right, "3", f"TEPO, seed 1: 0 {of}", wrong, "4", wrong, "9"]
    window.run(CHOOSE, "#filter", "both wrong")
    assert sides() == ["no such problem"]
    window.run(CHOOSE, "#benchmark", "gcd")
    assert sides()[:4] == ["1 of 1", f"{ours}0 {of}", wrong, NASTY], "as text"


@pytest.mark.axe
@pytest.mark.parametrize(("width", "scheme"), [(320, "dark"), (1400, "light")])
def test_axe_finds_nothing_and_every_screen_holds_it(window: Window, width: int, scheme: str) -> None:
    window.open(width, scheme=scheme)
    window.run(UNFOLD)
    window.wait(READY)  # all charts are drawn
    window.run((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    assert window.driver.execute_async_script(VIOLATIONS) == []
    assert window.run(OUTSIDE) == []


def test_without_scripts_there_are_a_picture_and_tables(window: Window) -> None:
    window.open(400, scripts=False)
    for fold in window.all("main > section > details:not([open], .scripted) > summary"):
        fold.click()
    shown = [".chart svg[role=img]", "#table-panel_e table", "#figure-panel_e-curves noscript table", "#side noscript"]
    assert window.run(VISIBLE, [*shown, ".controls", "#runs-fold"]) == shown
    assert window.texts("#figure-panel_e-curves tbody th") == [LONG, "TEPO"]
