"""The page in a real browser: sorting, the token view and runs side by side by mouse and keyboard,
light, dark and print, nothing on the console."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tepo.reporting.tables.table import Table
from tests.unit.reporting.chromium import Page
from tests.unit.reporting.pages import NASTY, page

pytestmark = [pytest.mark.chromium, pytest.mark.slow]


@pytest.fixture(scope="module")
def path(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(table), encoding="utf-8")
    return path


@pytest.fixture
def browser(window: Page, path: Path) -> Iterator[Page]:
    """Each test starts from the fresh page, and none may leave a word on the console."""
    window.open(path)
    window.unpacked()
    yield window
    assert window.console() == []


def labels(browser: Page) -> list[str]:
    """Row heads of the first table, top to bottom."""
    rows = "[...document.querySelector('#table-panel_e table').tBodies].flatMap((body) => [...body.rows])"
    return browser.run(f"return {rows}.map((row) => row.cells[0].textContent)")


def test_tables_sort_within_their_sections_and_back(browser: Page) -> None:
    before = labels(browser)
    head = browser.all("#table-panel_e table:first-of-type thead button")[1]
    head.click()
    falling = labels(browser)
    head.click()
    rising = labels(browser)
    assert before == ["GRPO/DAPO", "Panel E", "TEPO-w/o. KL", "KL(A > 0 ∧ ΔH < 0) 100% [x_y]", "Not run"]
    assert falling == ["GRPO/DAPO", "Panel E", "KL(A > 0 ∧ ΔH < 0) 100% [x_y]", "TEPO-w/o. KL", "Not run"]
    assert rising == before
    assert browser.one("#table-panel_e [aria-sort]").get_attribute("aria-sort") == "ascending"
    head.send_keys("\ue007")  # Enter: as it was
    assert labels(browser) == before
    assert browser.all("[aria-sort]") == []


def background(browser: Page, index: int) -> str:
    return browser.run(
        "return getComputedStyle(document.getElementById('response').children[arguments[0]]).backgroundColor", index
    )


def test_token_view_by_keyboard(browser: Page) -> None:
    box = browser.one("#response")
    assert browser.one("#views input:checked").get_attribute("value") == "entropy_change"
    falling, rising = background(browser, 0), background(browser, 1)
    assert falling != rising
    box.send_keys("3")  # advantage, which is the same at every token
    assert browser.one("#views input:checked").get_attribute("value") == "advantage"
    assert background(browser, 0) == background(browser, 1) != falling
    box.send_keys("\ue014\ue014")  # right, right
    assert box.get_attribute("aria-activedescendant") == "t2"
    assert "token 3 of 10" in browser.one("#token").text
    assert "operator" in browser.one("#token").text
    box.send_keys("\ue010")  # End
    assert '"<eos>"' in browser.one("#token").text
    box.send_keys("\ue015")  # down: the next response, whose third token looks like markup
    assert browser.one("#place").text.strip() == "2 of 3"
    assert browser.all("#response [role=option]")[2].get_property("textContent") == NASTY


def test_token_view_by_mouse(browser: Page) -> None:
    browser.one("#next").click()
    assert "✗ wrong" in browser.one("#verdict").text
    assert "cut off" in browser.one("#verdict").text
    browser.one("#previous").click()
    browser.all("#response [role=option]")[6].click()
    assert "class answer" in re.sub(r"\s+", " ", browser.one("#token").text)
    browser.one("#view-mask").click()
    assert background(browser, 0) != background(browser, 1)
    assert "masked" in browser.all("#response [role=option]")[0].get_attribute("class")


def test_another_run_has_its_own_counts_and_its_steps(browser: Page) -> None:
    assert "this objective has no mask" in browser.one(".counts:not([hidden])").text
    assert not browser.one("#dump-step").is_enabled()
    assert "this objective has no mask" not in browser.one("#explained").text
    browser.one("#view-mask").click()
    assert "this objective has no mask" in browser.one("#explained").text
    browser.choose("#dump-run", "TEPO, seed 1")
    assert "TEPO, seed 1, step 4" in browser.one(".counts:not([hidden])").text
    assert "KL mask" in browser.one("#views").text
    assert browser.one("#step").text == "4 (2 of 2)"
    browser.one("#dump-step").send_keys("\ue012")  # left
    assert "TEPO, seed 1, step 2" in browser.one(".counts:not([hidden])").text
    assert browser.one("#dump-step").get_attribute("aria-valuetext") == "step 2"
    assert browser.one("#views input:checked").get_attribute("value") == "mask", "the chosen colour stays"


def test_a_small_plot_shows_the_chosen_value_by_class(browser: Page) -> None:
    spread = browser.one("#spread")
    assert "Entropy change: median and middle half of each token class" in spread.text
    assert "all 3 responses" in spread.text
    classes = [row.text for row in browser.all("#spread .classes > :nth-child(3n + 1)")]
    assert classes == ["digit", "operator", "word", "answer", "other"]
    browser.one("#view-mask").click()
    assert "share of the tokens of each class" in spread.text
    assert re.search(r"answer\s+50\.0% of 2", spread.text)


def problems(browser: Page) -> list[str]:
    return browser.run("return [...document.getElementById('side-problem').options].map((o) => o.text)")


def test_two_runs_side_by_side_where_they_disagree(browser: Page) -> None:
    assert problems(browser) == ["gcd · 1+3= · 0% / 100%"]
    left, right = [side.text for side in browser.all(".side")]
    assert "0% of 2 responses right" in left
    assert "✗ wrong × 2" in left
    assert "✓ right × 2 exact · 1 token · answer 3" in right
    browser.choose("#side-filter", "all")
    assert len(problems(browser)) == 5, "four of benchmarks, and one that both were trained on"
    assert browser.one("#side-count").text == "5 problems"
    browser.one("#side-next").click()
    assert browser.one("#side-shown code").text == "1+3="
    browser.choose("#side-filter", "both")
    assert problems(browser)[:2] == ["add3 · 1+2= · 100% / 50%", "add3 · 1+3= · 100% / 100%"]
    browser.choose("#side-benchmark", "gcd")
    assert browser.one("#side-count").text == "no problem fits"
    assert not browser.one("#side-next").is_enabled()


def test_problems_are_searched_in_prompts_and_responses(browser: Page) -> None:
    browser.choose("#side-filter", "all")
    browser.one("#search").send_keys("</SCRIPT>")
    assert problems(browser)[0] == "gcd · 1+2= · 0% / 0%"
    assert NASTY in browser.one(".side pre").get_property("textContent")
    browser.choose("#search", "", "input")
    browser.one("#least").send_keys("2")
    assert [problem.split(" ")[0] for problem in problems(browser)] == ["training"]


def test_tokens_of_training_are_coloured_side_by_side(browser: Page) -> None:
    browser.choose("#side-filter", "all")
    browser.choose("#side-benchmark", "training (tokens)")
    colours = "[...document.querySelectorAll('.side pre span')].map((span) => span.style.backgroundColor)"
    before = browser.run(f"return {colours}")
    assert len(set(before)) > 2
    assert browser.one("#side-colour").is_displayed()
    browser.choose("#side-view-name", "entropy")
    assert browser.run(f"return {colours}") != before


def luminance(colour: str) -> float:
    """Relative luminance of "rgb(r, g, b)" (WCAG 2.1)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_light_and_dark_can_be_read(browser: Page, scheme: str, dark: bool) -> None:
    browser.screen(scheme=scheme)
    paper = luminance(browser.style("body", "backgroundColor"))
    assert (paper < 0.1) is dark
    for selector in ("body", ".notes", "a"):
        ink = luminance(browser.style(selector, "color"))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5, selector


def test_prints_without_its_controls(browser: Page) -> None:
    browser.screen(media="print")
    assert not browser.one("nav").is_displayed()
    assert not browser.one("#views").is_displayed()
    assert browser.one("#response").is_displayed()
    pdf = base64.b64decode(browser.command("Page.printToPDF", printBackground=False)["data"])
    assert pdf.startswith(b"%PDF")


def test_nothing_is_loaded_and_the_screen_is_not_blank(browser: Page) -> None:
    loaded = "performance.getEntriesByType('resource').filter((entry) => !entry.name.startsWith('data:'))"
    assert browser.run(f"return {loaded}.length") == 0
    assert len(browser.driver.get_screenshot_as_png()) > 20_000  # a blank page of this size is a few kilobytes
