"""One small table that the tests of this folder share."""

import pytest

from tepo.reporting.tables.build_table import TableSpec, build_table
from tepo.reporting.tables.table import Table
from tests.support.answers import BENCHMARKS, ROWS, samples
from tests.unit.reporting.printed_tables import printed


@pytest.fixture(scope="session")
def table() -> Table:
    """Three measured rows, one that was not run, and two rows of the paper."""
    reference = {"a": printed("table1", method="grpo_dapo"), "c": printed("table1", method="tepo")}
    names = {"name": "panel_e", "title": "Table 3, Panel E", "baseline": "GRPO/DAPO"}
    return build_table(
        samples({"a": 0.3, "b": 0.31, "c": 0.7}), TableSpec(ROWS, BENCHMARKS, reference=reference, **names)
    )
