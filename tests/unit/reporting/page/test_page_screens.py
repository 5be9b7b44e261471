from pathlib import Path

import pytest

from tests.unit.reporting.chromium import Page
from tests.unit.reporting.pages import LONG

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

SEEN = "return arguments[0].filter((part) => document.querySelector(part).checkVisibility())"


@pytest.mark.axe
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light")])
def test_every_screen_holds_it_and_axe_finds_nothing(path: Path, window: Page, width: int, scheme: str) -> None:
    window.open(path, width, scheme=scheme)
    window.unfold()
    assert window.outside() == window.violations() == []


def test_without_scripts_there_are_a_picture_and_tables(path: Path, window: Page) -> None:
    window.open(path, 400, scripts=False)
    for fold in window.all("main > section > details:not([open], .scripted) > summary"):
        fold.click()
    shown = [".chart svg[role=img]", "#table-panel_e table", "#figure-panel_e-curves noscript table", "#side noscript"]
    assert window.run(SEEN, [*shown, ".controls", "#runs-fold"]) == shown
    assert window.texts("#figure-panel_e-curves tbody th") == [LONG, "TEPO"]
