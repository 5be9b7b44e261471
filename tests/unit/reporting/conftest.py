"""One small table, and a window of Chromium, that the tests of this folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tepo.reporting.tables.build_table import TableSpec, build_table
from tepo.reporting.tables.table import Table
from tests.support.answers import BENCHMARKS, ROWS, samples
from tests.unit.reporting.chromium import Page, chromium
from tests.unit.reporting.pages import page
from tests.unit.reporting.printed_tables import printed


@pytest.fixture(scope="session")
def table() -> Table:
    """Three measured rows, one that was not run, and two rows of the paper."""
    reference = {"a": printed("table1", method="grpo_dapo"), "c": printed("table1", method="tepo")}
    names = {"name": "panel_e", "title": "Table 3, Panel E", "baseline": "GRPO/DAPO"}
    return build_table(
        samples({"a": 0.3, "b": 0.31, "c": 0.7}), TableSpec(ROWS, BENCHMARKS, reference=reference, **names)
    )


@pytest.fixture(scope="session")
def path(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(table), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Page]:
    """One Chromium for all tests."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def window(browser: Page) -> Iterator[Page]:
    """The same window, on whose console no test may leave a word."""
    yield browser
    assert browser.console() == []
