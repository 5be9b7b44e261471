import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.unit.reporting.printed_tables import all_rows, printed

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "examples/paper_arithmetic.py"
BY_CELLS, BY_AVERAGES = 2811, 2785  # the sizes of OMNI-MATH that its printed cells and the averages point to


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_its_output_stands_in_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    assert f"```\n{printed}```\n" in (ROOT / "notes/paper-arithmetic.md").read_text()
    follow, of, averages = printed.split()[:3]
    assert f"{follow} {of} the {averages} averages follow" in (ROOT / "docs/paper.md").read_text()


def test_an_average_is_over_samples_and_a_dash_is_zero(script: dict[str, Any]) -> None:
    row = printed("table1", method="tepo")
    assert script["average"](row) == pytest.approx(32.60, abs=0.005)
    assert sum(row.scores.values()) / 7 == pytest.approx(34.97, abs=0.005)  # 32.59 is printed
    dashed = [row for row in all_rows() if not row.complete]
    assert [round(script["average"](row), 2) for row in dashed] == [2.74, 3.34, 3.66]
    assert all(abs(script["average"](row) - row.average) < 0.04 for row in dashed)
