"""Verdicts under other choices in a real browser: picked by radio or mark, readable without scripts, on a phone and on
paper."""

import re
from pathlib import Path

import pytest

from tepo.reporting.page import PageStudy, build_page
from tepo.reporting.page.head import PageHead
from tepo.reporting.page.verdict_choices import VerdictChoices
from tests.unit.reporting.chromium import SHEET, Page
from tests.unit.reporting.page.test_verdict_choices import choices, frame, table

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

SAID = "#choices-made .said span:last-child"
LINES = """return [...document.querySelectorAll(".strips tbody tr:not(.said)")]
    .map((row) => [...row.cells].slice(1).map((cell) => cell.textContent).join(""))"""
CHOSEN = """return [...document.querySelectorAll(".strips .chosen")]
    .map((cell) => [cell.parentElement.rowIndex, cell.cellIndex, cell.textContent])"""


@pytest.fixture(scope="module")
def known() -> VerdictChoices:
    return choices(table(frame(8)))


@pytest.fixture(scope="module")
def path(known: VerdictChoices, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("choices") / "page.html"
    path.write_text(build_page(PageHead("Made up"), [PageStudy(table(frame(8)), choices=known)], []), encoding="utf-8")
    return path


def opened(window: Page, path: Path, width: int = 1400, **screen: str) -> Page:
    """The page with its choices unfolded."""
    window.open(path, width, **screen)
    window.run("document.querySelector('#choices-made').open = true")
    window.wait("return document.querySelectorAll('.strips .chosen').length > 0")
    return window


def pick(page: Page, name: str, value: str) -> None:
    (label,) = [
        one
        for field in page.all("#choices-made fieldset")
        if field.text.startswith(name)
        for one in field.find_elements("css selector", "label")
        if one.text.strip() == value
    ]
    label.click()


def expected(known: VerdictChoices, family: int, seeds: str, margin: str) -> list[str]:
    at, of = known.seeds.index(seeds), known.margins.index(margin)
    return [f"{strip.words[family][at][of].text}; {strip.intervals[at]}" for strip in known.strips]


def test_family_margin_and_seeds_change_word_and_interval(path: Path, window: Page, known: VerdictChoices) -> None:
    page = opened(window, path)
    first = page.texts(SAID)
    assert first == expected(known, 1, "all 8", "0")
    pick(page, "Margin", "4")
    assert page.texts(SAID) == expected(known, 1, "all 8", "4") != first
    pick(page, "Family", "alone")
    assert page.texts(SAID) == expected(known, 0, "all 8", "4")
    assert any(text.startswith("equivalent") for text in page.texts(SAID))
    pick(page, "Seeds", "first 3")
    assert page.texts(SAID) == expected(known, 0, "first 3", "4")
    assert page.one("#choices-made [role=status]").text.startswith("Family alone, Seeds first 3, Margin 4: ")
    pick(page, "Seeds", "one left out")
    assert page.texts(SAID) == expected(known, 0, "one left out", "4")


def test_a_mark_is_a_choice_and_the_chosen_one_is_framed_in_every_strip(
    path: Path, window: Page, known: VerdictChoices
) -> None:
    page = opened(window, path)
    assert [column for _, column, _ in page.run(CHOSEN)] == [9] * len(known.strips)
    page.run("document.querySelectorAll('.strips tbody')[1].rows[1].cells[2].click()")
    assert page.texts(SAID) == expected(known, 0, "first 3", "1")
    glyphs = [strip.words[0][0][1].glyph for strip in known.strips]
    assert [(column, glyph) for _, column, glyph in page.run(CHOSEN)] == [(2, glyph) for glyph in glyphs]
    checked = page.run("return [...document.querySelectorAll('#choices-made :checked')].map((one) => one.value)")
    assert checked == ["0", "0", "1"]


def test_without_scripts_the_strips_say_it_all(path: Path, window: Page, known: VerdictChoices) -> None:
    window.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        window.open(path)
    finally:
        window.command("Emulation.setScriptExecutionDisabled", value=False)
    window.one("#choices-made summary").click()
    assert window.texts(SAID) == expected(known, 1, "all 8", "0")
    lines = ["".join(one.glyph for part in own for one in part) for strip in known.strips for own in strip.words]
    assert window.run(LINES) == lines
    assert window.all("#choices-made input") == []
    legend = window.one("#choices-made .marks").text
    assert all(re.search(f"{one.glyph} {one.word}", legend) for one in known.legend)


@pytest.mark.parametrize("width", [320, 400, 800])
def test_nothing_reaches_beyond_the_screen(path: Path, window: Page, width: int) -> None:
    page = opened(window, path, width)
    assert page.outside() == []
    for value in ("0", "1", "2", "4"):
        pick(page, "Margin", value)
        assert page.outside() == []


def test_on_paper_an_open_strip_is_printed_without_its_controls(path: Path, window: Page) -> None:
    page = opened(window, path, SHEET, media="print")
    assert page.one(".strips").is_displayed()
    assert [one.is_displayed() for one in page.all("#choices-made fieldset")] == [False] * 3
    assert page.run("return document.documentElement.scrollWidth") <= SHEET


@pytest.mark.axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_axe_finds_nothing(path: Path, window: Page, width: int, scheme: str) -> None:
    assert opened(window, path, width, scheme=scheme).violations() == []
