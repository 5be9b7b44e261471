"""The page on a phone, a tablet, a desk and paper, light and dark, by keyboard and with axe-core: in a real browser."""

from pathlib import Path

import pytest

from tepo.reporting.page import build_page
from tepo.reporting.page.head import PageHead
from tepo.reporting.page.run_data import PageRun
from tests.unit.reporting.chromium import SHEET, Page

pytestmark = [pytest.mark.chromium, pytest.mark.slow, pytest.mark.disaster]

CONTROLS = """return [...document.querySelectorAll("a[href], button, select, input, summary, [tabindex='0']")]
    .filter((one) => one.checkVisibility() && !one.closest(".skip") && (one.type !== "radio" || one.checked)
        && !one.disabled && !one.dataset.reached).map((one) => one.outerHTML.slice(0, 80))"""
SMALLEST = """return Math.min(...[...document.querySelectorAll(".forest *")]
    .map((one) => parseFloat(getComputedStyle(one).fontSize)))"""
LOWER_END = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
LABELS = """const scroll = document.querySelector("#table-panel_e .scroll"), head = scroll.querySelector("tbody th");
    const box = scroll.getBoundingClientRect(), share = head.getBoundingClientRect().width / box.width;
    scroll.scrollLeft = 200;
    return [share, head.getBoundingClientRect().left - box.left]"""
VERDICTS_OUT_OF_SIGHT = """return [...document.querySelectorAll("#table-panel_e td.text")]
    .filter((one) => one.getBoundingClientRect().right > one.closest(".scroll").getBoundingClientRect().right + 1)
    .map((one) => one.textContent)"""
OVER_THE_NEXT = """return [...document.querySelectorAll(".label > *")]
    .filter((one) => one.getBoundingClientRect().right > one.closest("th").getBoundingClientRect().right)
    .map((one) => one.outerHTML)"""
DRAWN = """const figure = document.querySelector("figure:not(.live)");
    figure.closest("details").open = true;
    return figure.querySelector("svg").getBoundingClientRect().width"""
CAPTIONS = """return [...document.querySelectorAll("caption span")].filter((one) => one.checkVisibility()
    && one.getBoundingClientRect().right > one.closest(".scroll").getBoundingClientRect().right + 1)
    .map((one) => one.textContent)"""
LEAD_NOWHERE = """return [...document.querySelectorAll("nav a")]
    .filter((one) => !document.getElementById(one.hash.slice(1))?.checkVisibility()).map((one) => one.hash)"""
PAGE_RULES = """return [...document.styleSheets[0].cssRules]
    .filter((rule) => rule instanceof CSSPageRule).map((rule) => rule.cssText)"""
TIP = "const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.textContent"
TIP_SEEN = """const box = document.getElementById("tip").getBoundingClientRect();
    return box.left >= 0 && box.right <= innerWidth"""
FOCUS_COPY = """[...document.querySelectorAll("#table-panel_e .copy button")]
    .find((one) => one.textContent === arguments[0]).focus()"""
TOOLS = """return [...document.querySelectorAll(arguments[0])].filter((one) =>
    one.querySelectorAll(".download").length !== 2 || one.querySelector(`.anchor[href='#${one.id}']`) === null)
    .map((one) => one.id)"""
OVERLAPS = """const boxes = [...document.querySelectorAll(".ticks")].map((one) => [...one.children]
    .map((label) => label.getBoundingClientRect()));
    return boxes.flatMap((row) => row.slice(1).filter((box, at) => box.left < row[at].right)).map((box) => box.left)"""
CUT_CAPTIONS = """return [...document.querySelectorAll("caption, figcaption, .caption, summary")]
    .filter((one) => one.checkVisibility() && !one.matches(".sr")).filter((one) => {
        const text = document.createRange();
        text.selectNodeContents(one);
        return [...text.getClientRects()].some((box) => box.right > innerWidth + 1);
    }).map((one) => one.textContent.slice(0, 60))"""
SAID = "return document.querySelector('.copy [role=status]').textContent === 'copied'"
TEXT_AREA = """const area = document.createElement("textarea");
    area.id = "pasted";
    document.body.append(area);
    area.focus()"""


@pytest.mark.axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_axe_finds_nothing(path: Path, window: Page, width: int, scheme: str) -> None:
    window.open(path, width, scheme=scheme)
    window.unpacked()
    assert window.violations() == []


@pytest.mark.parametrize("width", [320, 400, 800, 1400])
def test_every_screen_holds_it(path: Path, window: Page, width: int) -> None:
    window.open(path, width)
    window.unpacked()
    assert window.outside() == []
    assert window.run(SMALLEST) >= 10


def test_the_first_screen_of_a_phone_shows_what_differs_and_by_how_much(path: Path, window: Page) -> None:
    window.open(path, 400)
    for selector in ("h1", ".ran", ".forest tbody tr:last-child .verdict"):
        assert 0 < window.run(LOWER_END, selector) <= 900, selector


def test_labels_stay_in_sight_and_leave_room_for_numbers(path: Path, window: Page) -> None:
    window.open(path, 400)
    share, moved = window.run(LABELS)
    assert share < 0.45
    assert moved == 0


@pytest.mark.parametrize("width", [400, 800])
def test_difference_and_verdict_are_in_sight_before_the_benchmarks(path: Path, window: Page, width: int) -> None:
    window.open(path, width)
    assert window.run(VERDICTS_OUT_OF_SIGHT) == []


def test_on_a_phone_labels_and_captions_break_and_drawings_keep_a_size_that_can_be_read(
    path: Path, window: Page
) -> None:
    window.open(path, 400)
    assert window.run(OVER_THE_NEXT) == []
    assert window.run(DRAWN) > 700
    window.run("document.querySelectorAll('caption span').forEach((one) => one.append(' and more'.repeat(20)))")
    assert window.run(CAPTIONS) == []


def test_the_contents_lead_to_every_part(path: Path, window: Page) -> None:
    window.open(path)
    assert window.run("return [...document.querySelectorAll('nav a')].map((one) => one.textContent)") == [
        "What was found",
        "Table 3, Panel E",
        "Runs side by side",
        "Tokens",
        "Runs",
        "Provenance",
    ]
    assert window.run(LEAD_NOWHERE) == []


def test_on_paper_nothing_is_cut_pages_have_numbers_and_controls_are_gone(path: Path, window: Page) -> None:
    window.open(path, SHEET, media="print")
    window.unpacked()
    assert [window.one(part).is_displayed() for part in ("nav", "#views", "#response")] == [False, False, True]
    assert window.run("return document.documentElement.scrollWidth") <= SHEET
    assert window.cut() == []
    assert window.style("h2", "breakAfter") == "avoid"
    assert any("counter(page)" in rule for rule in window.run(PAGE_RULES))


def test_every_control_is_reached_by_keyboard(path: Path, window: Page) -> None:
    window.open(path, 800)
    reach = "const one = document.activeElement; one.dataset.reached = 1; return one === document.body"
    for _ in range(500):
        window.press("Tab")
        if window.run(reach):
            break
    assert window.run(CONTROLS) == []


def tip(window: Page) -> str:
    return window.run(TIP)


def test_tooltips_by_keyboard(path: Path, window: Page) -> None:
    window.open(path, 400)
    window.run("document.querySelector('#table-panel_e td[tabindex=\"0\"]').focus()")
    first = tip(window)
    for part in ("GRPO/DAPO, add3: ", "95% interval", "n = 480 responses", "seeds 0, 1"):
        assert part in first
    window.press("ArrowRight")
    assert "GRPO/DAPO, gcd: " in tip(window)
    window.press("ArrowDown")
    assert "TEPO-w/o. KL, gcd: " in tip(window)
    window.press("End")
    assert "TEPO-w/o. KL, " in tip(window)
    window.press("Home")
    assert "Δ Avg.: " in tip(window)
    assert window.run(TIP_SEEN)
    assert window.run("return document.activeElement.getAttribute('aria-describedby')") == "tip"
    window.press("Escape")
    assert tip(window) == ""


@pytest.mark.parametrize(
    ("name", "part"), [("Markdown", "| GRPO/DAPO |"), ("LaTeX", r"\toprule"), ("CSV", "block,section,row")]
)
def test_a_table_is_copied(path: Path, window: Page, name: str, part: str) -> None:
    window.open(path, 800)
    window.run(FOCUS_COPY, name)
    window.press("Enter")
    window.wait(SAID)
    assert part in pasted(window)


def pasted(window: Page) -> str:
    """What was copied last."""
    window.run(TEXT_AREA)
    event = {"key": "v", "code": "KeyV", "modifiers": 2, "commands": ["paste"]}
    window.command("Input.dispatchKeyEvent", type="keyDown", **event)
    return window.run("return document.getElementById('pasted').value")


@pytest.mark.parametrize("part", ["figure", ".plots"])
def test_beside_each_figure_it_is_cited_and_downloaded(path: Path, window: Page, part: str) -> None:
    window.open(path, 800)
    assert window.run(TOOLS, part) == []
    window.run("document.querySelector(`${arguments[0]} .download`).closest('details')?.setAttribute('open', '')", part)
    window.run("document.querySelector(`${arguments[0]} .download`).focus()", part)
    window.press("Enter")
    window.wait("return [...document.querySelectorAll('[role=status]')].some((one) => one.textContent === 'copied')")
    said = pasted(window)
    assert said.startswith("Laptop ")
    assert "tepo 0.1.0. tepo report panel-e." in said
    assert window.run("return document.querySelector(arguments[0]).id", part) == said.rpartition("#")[2]


def test_a_row_leads_to_its_run_and_its_command(path: Path, window: Page) -> None:
    window.open(path, 800, part="#run-run-2")
    sought = "return document.querySelector('.fact.sought')?.id === arguments[0]"
    window.wait(sought.replace("arguments[0]", "'run-run-2'"))
    window.run("location.hash = '#run-run-1'")
    window.wait(sought.replace("arguments[0]", "'run-run-1'"))


@pytest.mark.parametrize("width", [400, 800, 1400])
def test_the_contents_stay_in_view_and_a_link_opens_what_is_folded(path: Path, window: Page, width: int) -> None:
    window.open(path, width, part="#figure-wide")
    assert window.one("#figure-wide").is_displayed()
    seen = "const box = document.querySelector('nav').getBoundingClientRect(); return [box.top, box.bottom]"
    top, bottom = window.run(seen)
    assert top >= -1
    assert bottom <= 900
    assert window.run("return scrollY") > 100


def test_settings_are_down_and_rows_across(path: Path, window: Page) -> None:
    window.open(path)
    window.run("document.getElementById('runs-view').open = true")
    window.wait("return document.querySelector('#runs-view table')")
    sides = "#runs-view .scroll:not(.grouped)"
    assert window.texts(f"{sides} tbody:first-of-type th") == ["objective.name"]
    assert window.texts(f"{sides} tbody:first-of-type td") == ["grpo_dapo", "tepo"]
    window.one("#runs-view [type=checkbox]").click()
    assert window.texts(f"{sides} tbody:first-of-type th") == ["objective.name", "train.steps"]
    window.all("#runs-view .remove")[0].click()
    assert len(window.all(f"{sides} thead th")) == 2
    window.one("#runs-view .controls button").click()
    assert len(window.all(f"{sides} thead th")) == 3
    assert window.violations() == []


def test_all_runs_stand_in_groups_with_means_and_ranges(tmp_path: Path, window: Page) -> None:
    known = [("tepo", 0, 50.0, "finished"), ("tepo", 1, 70.0, "collapse at step 3"), ("gspo", 0, 40.0, "finished")]
    runs = [
        PageRun(
            f"{name}-{seed}", name.upper(), name, seed, {"objective": {"name": name}}, {"status": end, "% right": right}
        )
        for name, seed, right, end in known
    ]
    path = tmp_path / "page.html"
    path.write_text(build_page(PageHead("Runs"), [], runs), encoding="utf-8")
    window.open(path, 400)
    window.run("document.getElementById('runs-view').open = true")
    window.wait("return document.querySelector('.grouped table')")
    assert window.texts(".grouped tbody th") == ["tepo", "gspo"]
    assert window.texts(".grouped tbody td") == ["2", "60.0 (50.0 to 70.0)", "1", "–", "1", "40.0", "0", "–"]
    window.choose("#runs-by", "")
    assert window.texts(".grouped tbody th") == ["TEPO", "GSPO"]
    assert window.outside() == []
    assert window.violations() == []


@pytest.mark.parametrize("width", [400, 1400])
def test_no_label_lies_on_another_and_no_caption_is_cut(path: Path, window: Page, width: int) -> None:
    window.open(path, width)
    window.unpacked()
    assert window.run(OVERLAPS) == []
    assert window.run(CUT_CAPTIONS) == []
