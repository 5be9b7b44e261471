import time
from pathlib import Path

import pytest

from tepo.reporting.tables.render import as_text
from tepo.reporting.tables.table import Table
from tests.unit.reporting.chromium import Page
from tests.unit.reporting.pages import LONG, NASTY

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

CURVES = "#figure-panel_e-curves"
SHOWN = """[...new Set([...document.querySelectorAll("figure")].map((figure) => ["GRPO", "TEPO"].map((name) => {
    const line = '[aria-roledescription="line mark"]', marks = `:is(text, ${line})[aria-label*="method: ${name}"]`;
    return Math.max(...[...figure.querySelectorAll(marks)].map((one) => getComputedStyle(one).opacity)) > 0.5;
    }).join()))].join(" or ")"""
SEEN = """const box = document.querySelector(arguments[0])?.getBoundingClientRect();
    return box && box.top >= 0 && box.bottom <= innerHeight"""
OF = "of 2 responses to this problem right"
COLOURS = "return [...document.querySelectorAll('#response span')].map((one) => one.style.backgroundColor)"


@pytest.fixture
def fresh(window: Page, path: Path) -> Page:
    window.open(path)
    window.ready()
    window.wait("return document.querySelector('#where').textContent && document.querySelector('#response span')")
    return window


def test_charts_are_drawn_when_they_are_seen_and_share_the_method_that_is_chosen(fresh: Page) -> None:
    fresh.unfold()

    def shown(ours: str, theirs: str) -> None:
        fresh.wait(f"return {SHOWN} === arguments[0]", f"{theirs},{ours}")

    shown("true", "true")
    for theirs in ("false", "true"):  # chosen, and chosen again
        fresh.all(f"{CURVES} .role-legend-label text")[-1].click()
        shown("true", theirs)
    fresh.one("#figure-panel_e-differences [aria-roledescription=point]").click()
    shown("false", "true")
    fresh.one(f"{CURVES} svg").click()  # beside all marks
    shown("true", "true")
    fresh.choose("#method", fresh.texts("#method option")[-1])  # without a pointer
    fresh.wait(f"return {SHOWN} !== 'true,true'")
    fresh.choose("#method", "")
    shown("true", "true")


def test_a_link_to_a_run_opens_the_list_of_runs(window: Page, path: Path) -> None:
    window.open(path, part="#run-run-2")
    window.wait(SEEN, "#run-run-2")
    window.run("scrollTo(0, 0); document.querySelector('#table-panel_e a').click()")
    window.wait(SEEN, "#run-run-1")
    assert len(window.all("#runs table")) == 1


def test_two_runs_side_by_side(fresh: Page) -> None:
    def sides() -> list[str]:
        return fresh.texts("#where, #answers h3, #answers b, #answers pre")

    right, wrong = "✓ right, 2 times, 1 token", "✗ wrong, 1 token, different"
    ours, theirs = f"{LONG}, seed 0: ", "TEPO, seed 1: "
    assert sides() == ["1 of 1", f"{ours}2 {OF}", right, "3", f"{theirs}0 {OF}", wrong, "4", wrong, "9"]
    fresh.choose("#filter", "all")
    places = [sides()[0]]
    for button in ("after", "after", "before"):
        fresh.one(f"#{button}").click()
        places += sides()[:1]
    assert places == ["1 of 2", "2 of 2", "1 of 2", "2 of 2"]
    fresh.choose("#right", LONG)
    assert sides() == ["1 of 2", *2 * [f"{ours}2 {OF}", right, "3"]]
    fresh.choose("#filter", "both wrong")
    assert sides() == ["no such problem"]
    fresh.choose("#benchmark", "gcd")
    assert sides()[:4] == ["1 of 2", f"{ours}0 {OF}", wrong, NASTY]


def test_tokens_by_run_step_response_and_colour(fresh: Page) -> None:
    falling, rising, *_ = fresh.run(COLOURS)
    assert falling != rising
    fresh.choose("#dump-view", "Advantage")
    assert len(set(fresh.run(COLOURS))) == 1
    fresh.choose("#dump-run", "TEPO")
    assert fresh.texts("#dump-step option") == ["1, before training", "4"]
    assert fresh.one("#dump-step").get_property("selectedIndex") == 1
    fresh.choose("#dump-step", "before training")
    fresh.choose("#dump-view", "KL mask")
    assert len(fresh.all("#response .masked")) == 7
    fresh.choose("#dump-response", "2 ✗")
    assert fresh.texts("#response span")[2] == NASTY
    assert fresh.texts("#values thead th")[:3] == ["Token", "Entropy change", "KL mask"]
    assert fresh.texts("#values tbody tr:last-child > *")[:3] == ['"4"', "−0.1", "0"]


def test_a_table_is_saved_as_it_is_printed(browser: Page, path: Path, table: Table, tmp_path: Path) -> None:
    browser.open(path)
    browser.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.one("[data-csv]").click()
    file = tmp_path / "panel_e.csv"
    for _ in range(200):
        if file.is_file():
            break
        time.sleep(0.1)
    header, *_ = as_text(table, "csv").splitlines()
    assert file.read_text(encoding="utf-8").splitlines()[0] == header
    assert browser.console() == []
