from pathlib import Path

import pytest

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
    fresh.one("#after").click()
    assert sides()[0] == "2 of 2"
    fresh.choose("#right", LONG)
    assert sides()[1:] == 2 * [f"{ours}2 {OF}", right, "3"]
    fresh.choose("#filter", "both wrong")
    assert sides() == ["no such problem"]
    fresh.choose("#benchmark", "gcd")
    assert sides()[:4] == ["1 of 2", f"{ours}0 {OF}", wrong, NASTY]


VISIBLE = "return arguments[0].filter((part) => document.querySelector(part).checkVisibility())"


@pytest.mark.axe
@pytest.mark.parametrize(("width", "scheme"), [(320, "dark"), (1400, "light")])
def test_axe_finds_nothing_and_every_screen_holds_it(path: Path, window: Page, width: int, scheme: str) -> None:
    window.open(path, width, scheme=scheme)
    window.unfold()
    assert window.violations() == []
    assert window.outside() == []


def test_without_scripts_there_are_a_picture_and_tables(path: Path, window: Page) -> None:
    window.open(path, 400, scripts=False)
    for fold in window.all("main > section > details:not([open], .scripted) > summary"):
        fold.click()
    shown = [".chart svg[role=img]", "#table-panel_e table", "#figure-panel_e-curves noscript table", "#side noscript"]
    assert window.run(VISIBLE, [*shown, ".controls", "#runs-fold"]) == shown
    assert window.texts("#figure-panel_e-curves tbody th") == [LONG, "TEPO"]
