"""The page in a real browser: sorting, the token view and runs side by side by mouse and keyboard."""

import re
from pathlib import Path

import pytest

from tests.unit.reporting.chromium import Page
from tests.unit.reporting.pages import NASTY

pytestmark = [pytest.mark.chromium, pytest.mark.slow]


@pytest.fixture
def fresh(window: Page, path: Path) -> Page:
    window.open(path)
    window.unpacked()
    return window


def labels(fresh: Page) -> list[str]:
    """Row heads of the first table, top to bottom."""
    rows = "[...document.querySelector('#table-panel_e table').tBodies].flatMap((body) => [...body.rows])"
    return fresh.run(f"return {rows}.map((row) => row.cells[0].textContent)")


def test_tables_sort_within_their_sections_and_back(fresh: Page) -> None:
    before = labels(fresh)
    head = fresh.all("#table-panel_e table:first-of-type thead button")[1]
    head.click()
    falling = labels(fresh)
    head.click()
    rising = labels(fresh)
    assert before == ["GRPO/DAPO", "Panel E", "TEPO-w/o. KL", "KL(A > 0 ∧ ΔH < 0) 100% [x_y]", "Not run"]
    assert falling == ["GRPO/DAPO", "Panel E", "KL(A > 0 ∧ ΔH < 0) 100% [x_y]", "TEPO-w/o. KL", "Not run"]
    assert rising == before
    assert fresh.one("#table-panel_e [aria-sort]").get_attribute("aria-sort") == "ascending"
    head.send_keys("\ue007")  # Enter: as it was
    assert labels(fresh) == before
    assert fresh.all("[aria-sort]") == []


def background(fresh: Page, index: int) -> str:
    return fresh.run(
        "return getComputedStyle(document.getElementById('response').children[arguments[0]]).backgroundColor", index
    )


def test_token_view_by_keyboard(fresh: Page) -> None:
    box = fresh.one("#response")
    assert fresh.one("#views input:checked").get_attribute("value") == "entropy_change"
    falling, rising = background(fresh, 0), background(fresh, 1)
    assert falling != rising
    box.send_keys("3")  # advantage, which is the same at every token
    assert fresh.one("#views input:checked").get_attribute("value") == "advantage"
    assert background(fresh, 0) == background(fresh, 1) != falling
    box.send_keys("\ue014\ue014")  # right, right
    assert box.get_attribute("aria-activedescendant") == "t2"
    assert "token 3 of 10" in fresh.one("#token").text
    assert "operator" in fresh.one("#token").text
    box.send_keys("\ue010")  # End
    assert '"<eos>"' in fresh.one("#token").text
    box.send_keys("\ue015")  # down: the next response, whose third token looks like markup
    assert fresh.one("#place").text.strip() == "2 of 3"
    assert fresh.all("#response [role=option]")[2].get_property("textContent") == NASTY


def test_token_view_by_mouse(fresh: Page) -> None:
    fresh.one("#next").click()
    assert "✗ wrong" in fresh.one("#verdict").text
    assert "cut off" in fresh.one("#verdict").text
    fresh.one("#previous").click()
    fresh.all("#response [role=option]")[6].click()
    assert "class answer" in re.sub(r"\s+", " ", fresh.one("#token").text)
    fresh.one("#view-mask").click()
    assert background(fresh, 0) != background(fresh, 1)
    assert "masked" in fresh.all("#response [role=option]")[0].get_attribute("class")


def test_another_run_has_its_own_counts_and_its_steps(fresh: Page) -> None:
    assert "this objective has no mask" in fresh.one(".counts:not([hidden])").text
    assert not fresh.one("#dump-step").is_enabled()
    assert "this objective has no mask" not in fresh.one("#explained").text
    fresh.one("#view-mask").click()
    assert "this objective has no mask" in fresh.one("#explained").text
    fresh.choose("#dump-run", "TEPO, seed 1")
    assert "TEPO, seed 1, step 4" in fresh.one(".counts:not([hidden])").text
    assert "KL mask" in fresh.one("#views").text
    assert fresh.one("#step").text == "4 (2 of 2)"
    fresh.one("#dump-step").send_keys("\ue012")  # left
    assert "TEPO, seed 1, step 2" in fresh.one(".counts:not([hidden])").text
    assert fresh.one("#dump-step").get_attribute("aria-valuetext") == "step 2"
    assert fresh.one("#views input:checked").get_attribute("value") == "mask", "the chosen colour stays"


def test_a_small_plot_shows_the_chosen_value_by_class(fresh: Page) -> None:
    spread = fresh.one("#spread")
    assert "Entropy change: median and middle half of each token class" in spread.text
    assert "all 3 responses" in spread.text
    classes = [row.text for row in fresh.all("#spread .classes > :nth-child(3n + 1)")]
    assert classes == ["digit", "operator", "word", "answer", "other"]
    fresh.one("#view-mask").click()
    assert "share of the tokens of each class" in spread.text
    assert re.search(r"answer\s+50\.0% of 2", spread.text)


def problems(fresh: Page) -> list[str]:
    return fresh.run("return [...document.getElementById('side-problem').options].map((o) => o.text)")


def test_two_runs_side_by_side_where_they_disagree(fresh: Page) -> None:
    assert problems(fresh) == ["gcd · 1+3= · 0% / 100%"]
    left, right = [side.text for side in fresh.all(".side")]
    assert "0% of 2 responses right" in left
    assert "✗ wrong × 2" in left
    assert "✓ right × 2 exact · 1 token · answer 3" in right
    fresh.choose("#side-filter", "all")
    assert len(problems(fresh)) == 5, "four of benchmarks, and one that both were trained on"
    assert fresh.one("#side-count").text == "5 problems"
    fresh.one("#side-next").click()
    assert fresh.one("#side-shown code").text == "1+3="
    fresh.choose("#side-filter", "both")
    assert problems(fresh)[:2] == ["add3 · 1+2= · 100% / 50%", "add3 · 1+3= · 100% / 100%"]
    fresh.choose("#side-benchmark", "gcd")
    assert fresh.one("#side-count").text == "no problem fits"
    assert not fresh.one("#side-next").is_enabled()


def test_problems_are_searched_in_prompts_and_responses(fresh: Page) -> None:
    fresh.choose("#side-filter", "all")
    fresh.one("#search").send_keys("</SCRIPT>")
    assert problems(fresh)[0] == "gcd · 1+2= · 0% / 0%"
    assert NASTY in fresh.one(".side pre").get_property("textContent")
    fresh.choose("#search", "", "input")
    fresh.one("#least").send_keys("2")
    assert [problem.split(" ")[0] for problem in problems(fresh)] == ["training"]


def test_tokens_of_training_are_coloured_side_by_side(fresh: Page) -> None:
    fresh.choose("#side-filter", "all")
    fresh.choose("#side-benchmark", "training (tokens)")
    colours = "[...document.querySelectorAll('.side pre span')].map((span) => span.style.backgroundColor)"
    before = fresh.run(f"return {colours}")
    assert len(set(before)) > 2
    assert fresh.one("#side-colour").is_displayed()
    fresh.choose("#side-view-name", "entropy")
    assert fresh.run(f"return {colours}") != before
