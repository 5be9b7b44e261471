"""The page in a real browser: sorting, the token view by mouse and keyboard,
light, dark and print, nothing on the console."""

import base64
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tepo.reporting.table import Table
from tests.unit.reporting.pages import NASTY, page

pytestmark = [pytest.mark.chromium, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver  # a development dependency: only this file needs it

    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(table), encoding="utf-8")
    options = webdriver.ChromeOptions()
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1300,1000",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium") or ""  # both named, or selenium asks the network for them
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.get(path.as_uri())
    yield driver
    driver.quit()


@pytest.fixture(autouse=True)
def reload(request: pytest.FixtureRequest, browser: Any) -> Iterator[None]:
    """Each test starts from the fresh page, and none may leave a word on the console."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    browser.refresh()
    yield
    assert browser.get_log("browser") == []


def one(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def labels(browser: Any) -> list[str]:
    """Row heads of the first table, top to bottom."""
    rows = "[...document.querySelector('#table-panel_e table').tBodies].flatMap((body) => [...body.rows])"
    return browser.execute_script(f"return {rows}.map((row) => row.cells[0].textContent)")


def test_tables_sort_within_their_sections_and_back(browser: Any) -> None:
    before = labels(browser)
    head = browser.find_elements("css selector", "#table-panel_e table:first-of-type thead button")[1]
    head.click()
    falling = labels(browser)
    head.click()
    rising = labels(browser)
    assert before == ["GRPO/DAPO", "Panel E", "TEPO-w/o. KL", "KL(A > 0 ∧ ΔH < 0) 100% [x_y]", "Not run"]
    assert falling == ["GRPO/DAPO", "Panel E", "KL(A > 0 ∧ ΔH < 0) 100% [x_y]", "TEPO-w/o. KL", "Not run"]
    assert rising == before
    assert one(browser, "#table-panel_e [aria-sort]").get_attribute("aria-sort") == "ascending"
    head.send_keys("\ue007")  # Enter: as it was
    assert labels(browser) == before
    assert browser.find_elements("css selector", "[aria-sort]") == []


def background(browser: Any, index: int) -> str:
    return browser.execute_script(
        "return getComputedStyle(document.getElementById('response').children[arguments[0]]).backgroundColor", index
    )


def test_token_view_by_keyboard(browser: Any) -> None:
    box = one(browser, "#response")
    advantage = background(browser, 0)
    box.send_keys("4")  # entropy change
    assert one(browser, "#views input:checked").get_attribute("value") == "entropy_change"
    assert background(browser, 0) != advantage
    falling, rising = background(browser, 0), background(browser, 1)
    assert falling != rising
    box.send_keys("\ue014\ue014")  # right, right
    assert box.get_attribute("aria-activedescendant") == "t2"
    assert "token 3 of 10" in one(browser, "#token").text
    assert "operator" in one(browser, "#token").text
    box.send_keys("\ue010")  # End
    assert '"<eos>"' in one(browser, "#token").text
    box.send_keys("\ue015")  # down: the next response, whose third token looks like markup
    assert one(browser, "#place").text.strip() == "2 of 3"
    assert box.find_elements("css selector", "[role=option]")[2].get_property("textContent") == NASTY


def test_token_view_by_mouse(browser: Any) -> None:
    one(browser, "#next").click()
    assert "✗ wrong" in one(browser, "#verdict").text
    assert "cut off" in one(browser, "#verdict").text
    one(browser, "#previous").click()
    browser.find_elements("css selector", "#response [role=option]")[6].click()
    assert "class answer" in re.sub(r"\s+", " ", one(browser, "#token").text)
    one(browser, "#view-mask").click()
    assert background(browser, 0) != background(browser, 1)
    assert "masked" in browser.find_elements("css selector", "#response [role=option]")[0].get_attribute("class")


def test_another_run_has_its_own_counts(browser: Any) -> None:
    assert "this objective has no mask" in one(browser, ".counts:not([hidden])").text
    browser.execute_script(
        "const s = document.getElementById('dump'); s.value = '1'; s.dispatchEvent(new Event('change'));"
    )
    assert "TEPO, seed 1" in one(browser, ".counts:not([hidden])").text
    assert "KL mask" in one(browser, "#views").text


def luminance(colour: str) -> float:
    """Relative luminance of "rgb(r, g, b)" (WCAG 2.1)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_light_and_dark_can_be_read(browser: Any, scheme: str, dark: bool) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    style = "getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    paper = luminance(browser.execute_script(f"return {style}", "body", "backgroundColor"))
    assert (paper < 0.1) is dark
    for selector in ("body", ".notes", "a"):
        ink = luminance(browser.execute_script(f"return {style}", selector, "color"))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5, selector


def test_prints_without_its_controls(browser: Any) -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not one(browser, "nav").is_displayed()
    assert not one(browser, "#views").is_displayed()
    assert one(browser, "#response").is_displayed()
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"])
    assert pdf.startswith(b"%PDF")


def test_nothing_is_loaded_and_nothing_overflows(browser: Any, tmp_path: Path) -> None:
    assert (
        browser.execute_script(
            "return performance.getEntriesByType('resource').filter((entry) => !entry.name.startsWith('data:')).length"
        )
        == 0
    )
    browser.set_window_size(500, 900)
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    browser.set_window_size(1300, 1000)
    assert browser.save_screenshot(str(tmp_path / "page.png"))
    assert (tmp_path / "page.png").stat().st_size > 20_000  # a blank page of this size is a few kilobytes
