"""One small table, and a window of Chromium, that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from tepo.reporting.paper.reference import RowKey, reference_row
from tepo.reporting.tables.build_table import TableSpec, build_table
from tepo.reporting.tables.table import Table
from tests.unit.reporting.chromium import Page, chromium
from tests.unit.reporting.samples import BENCHMARKS, ROWS, samples


@pytest.fixture(scope="session")
def table() -> Table:
    """Three measured rows, one that was not run, and two rows of the paper."""
    reference = {
        "a": reference_row(RowKey("table1", method="grpo_dapo")),
        "c": reference_row(RowKey("table1", method="tepo")),
    }
    return build_table(
        samples({"a": 0.3, "b": 0.31, "c": 0.7}),
        TableSpec(
            ROWS, BENCHMARKS, name="panel_e", title="Table 3, Panel E", baseline="GRPO/DAPO", reference=reference
        ),
    )


@pytest.fixture(scope="module")
def window() -> Iterator[Page]:
    """One Chromium for all tests of a file."""
    with chromium() as page:
        yield page
