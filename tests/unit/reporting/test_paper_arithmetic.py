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


def _shares(benchmark: str, size: int) -> tuple[int, int]:
    """Number of distinct printed cells of a benchmark that are a share k / size, cut or rounded to two decimals; and
    the number of all."""
    cells = {(row.model, row.scores[benchmark]) for row in all_rows() if row.scores[benchmark]}
    gaps = [[100 * (round(cell * size / 100) + more) / size - cell for more in (0, 1)] for _, cell in cells if cell]
    return sum(any(abs(gap) <= 0.005 + 1e-9 or 0 <= gap < 0.01 for gap in two) for two in gaps), len(cells)


def test_the_fitted_size_is_one_of_the_best_and_the_cells_disagree(script: dict[str, Any]) -> None:
    rows = {
        (row.model, row.average, *row.scores.values()): row
        for row in all_rows()
        if row.complete and any(row.scores.values())
    }
    following = {}
    for size in range(2600, 3001):
        script["SAMPLES"]["OMNI-MATH"] = size
        following[size] = sum(abs(script["average"](row) - row.average) <= 0.03 for row in rows.values())
    script["SAMPLES"]["OMNI-MATH"] = BY_AVERAGES
    best = [size for size, count in following.items() if count == max(following.values())]
    assert (best[0], best[-1], following[BY_AVERAGES], following[BY_CELLS]) == (2773, 2789, 27, 20)
    assert (_shares("OMNI-MATH", BY_CELLS), _shares("OMNI-MATH", BY_AVERAGES)) == ((40, 41), (26, 41))


@pytest.mark.parametrize(
    ("benchmark", "size"),
    [("AIME24", 960), ("AIME25", 960), ("AMC", 2656), ("MATH-500", 500), ("OlympiadBench", 675), ("Minerva", 272)],
)
def test_other_sizes_are_confirmed_by_the_cells(benchmark: str, size: int, script: dict[str, Any]) -> None:
    assert script["SAMPLES"][benchmark] == size
    possible, cells = _shares(benchmark, size)
    assert possible >= cells - 2
