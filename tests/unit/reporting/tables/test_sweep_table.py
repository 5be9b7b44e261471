"""A sweep's table of rows x settings and its figure, from made-up samples."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Text

from tepo.reporting.figures.curves import svg
from tepo.reporting.figures.study_figures import plane_figure, sweep_figure
from tepo.reporting.tables.build_table import RowSpec, TableSpec, build_table
from tepo.reporting.tables.sweep_table import sensitivity_blocks, sweep_blocks
from tepo.reporting.tables.table import SAME, Block, Table, verdict_in
from tests.unit.reporting.samples import BENCHMARKS, samples

RATES = ("1e-4", "2e-4", "1e-3")
CHANCES = {"a": (0.6, 0.5, 0.3), "b": (0.5, 0.5, 0.6)}  # a is better at the first rate, b at the last


def specs(axis: str = "learning_rate", values: tuple[str, ...] = RATES, **more: str) -> list[RowSpec]:
    methods = {"a": "grpo_dapo", "b": "tepo"}
    return [
        RowSpec(f"{row}/{value}", row.upper(), methods[row], setting={axis: value, **more})
        for value in values
        for row in "ab"
    ]


def table(rows: list[RowSpec], drop: str = "", baseline: str | None = "A") -> Table:
    chances = {row.key: CHANCES[row.key[0]][index // 2 % 3] for index, row in enumerate(rows) if row.key != drop}
    return build_table(samples(chances, seeds=5), TableSpec(rows, BENCHMARKS, name="t", title="t", baseline=baseline))


def test_each_cell_is_the_average_of_the_long_form_at_that_setting() -> None:
    rows = specs()
    long = table(rows)
    (block,) = sweep_blocks(rows, long.blocks)
    assert (block.title, block.notes) == ("Average accuracy by learning_rate", ("± is over seeds and problems.",))
    assert [column.title for column in block.columns] == list(RATES)
    assert [row.label for row in block.rows] == ["A", "B"]
    for row in block.rows:
        for index, rate in enumerate(RATES):
            (line,) = (line for line in long.blocks[index].rows if line.key == f"{row.label.lower()}/{rate}")
            average = line.cells[[column.key for column in long.blocks[index].columns].index("average")]
            cell = row.cells[index]
            assert (cell.mean, cell.low, cell.high, cell.n) == (average.mean, average.low, average.high, average.n)
            assert line.label == f"{row.label}, learning_rate={rate}"
    assert [cell.rank for cell in block.rows[0].cells][::2] == [1, 0]  # the best of a column is the best at a setting
    assert [cell.rank for cell in block.rows[1].cells][::2] == [0, 1]


def test_a_row_is_compared_with_the_baseline_at_its_own_setting() -> None:
    """Against the baseline at one fixed setting, b at 1e-3 would tie with a at 1e-4."""
    long = table(specs())
    verdicts = [[verdict_in(row.cells[-1].text) for row in block.rows] for block in long.blocks]
    assert verdicts == [["baseline", "worse"], ["baseline", "not decided"], ["baseline", "better"]]
    for one, rate in zip(long.comparisons, RATES, strict=True):
        assert (one.row.key, one.baseline.key) == (f"b/{rate}", f"a/{rate}")
        average = {row.key: row.cells[2].mean for block in long.blocks for row in block.rows}
        assert one.cell.mean == pytest.approx(average[one.row.key] - average[one.baseline.key])
    assert any("points above A at the same setting, on the same problems and seeds" in note for note in long.notes)
    assert not any("at the same setting" in note for note in table(specs(), baseline=None).notes)


def test_a_row_that_is_another_one_at_some_setting_is_marked() -> None:
    rows = [replace(row, same_as="A") if row.key == "b/2e-4" else row for row in specs()]
    (block,) = sweep_blocks(rows, table(rows).blocks)
    assert [row.label for row in block.rows] == ["A", f"B {SAME}"]


def test_a_row_with_the_averages_of_another_one_is_marked() -> None:
    measured = table(specs()).blocks
    cells = measured[0].rows[0].cells
    same = [replace(block, rows=tuple(replace(row, cells=cells) for row in block.rows)) for block in measured]
    assert [row.label for row in sweep_blocks(specs(), same)[0].rows] == [f"A {SAME}", f"B {SAME}"]
    (block,) = sweep_blocks(specs(), measured)
    assert [row.label for row in block.rows] == ["A", "B"]


def test_further_axes_and_models_are_blocks_of_their_own() -> None:
    rows = [
        *specs(epochs="1"),
        *(RowSpec(f"{row.key}/2", row.label, setting={**row.setting, "epochs": "2"}) for row in specs()),
    ]
    titles = [block.title for block in sweep_blocks(rows, table(rows).blocks)]
    assert titles == [f"Average accuracy by learning_rate, epochs={n}" for n in (1, 2)]


def test_the_figure_has_the_cells_of_the_table() -> None:
    rows = specs()
    (block,) = sweep_blocks(rows, table(rows, drop="b/2e-4").blocks)
    figure = sweep_figure([block])
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()] == list(RATES)
    assert axes.get_xlabel() == "learning_rate"
    for row, line in zip(block.rows, axes.lines, strict=True):
        assert line.get_label() == row.label
        assert list(line.get_xdata()) == [float(rate) for rate in RATES]
        np.testing.assert_array_equal(line.get_ydata(), np.array([cell.mean for cell in row.cells], dtype=float))
    assert np.isnan(axes.lines[1].get_ydata()[1])  # a gap, not a line across it
    assert svg(sweep_figure([block])) == svg(figure)


@pytest.mark.parametrize(
    ("values", "scale", "positions"),
    [
        (("1", "2", "8"), "log", [1, 2, 8]),
        (("1", "2", "3"), "linear", [1, 2, 3]),
        (("0", "1", "16"), "linear", [0, 1, 16]),
        (("paper", "tight", "0.2"), "linear", [0, 1, 2]),
        (("1", "8", "inf"), "linear", [0, 1, 2]),
    ],
)
def test_the_axis_is_a_scale_numbers_or_names(values: tuple[str, ...], scale: str, positions: list[float]) -> None:
    rows = specs("axis", values)
    blocks: tuple[Block, ...] = sweep_blocks(rows, table(rows).blocks)
    (axes,) = sweep_figure(blocks).axes
    assert axes.get_xscale() == scale
    assert list(axes.lines[0].get_xdata()) == positions
    assert [text.get_text() for text in axes.get_xticklabels()] == list(values)


def test_values_may_be_written_in_any_order() -> None:
    rows = specs(values=("1e-3", "1e-4", "2e-4"))
    (line, _) = sweep_figure(sweep_blocks(rows, table(rows).blocks)).axes[0].lines
    assert list(line.get_xdata()) == [1e-4, 2e-4, 1e-3]


def shown(rows: list[RowSpec], drop: str = "") -> list[Block]:
    chances = {row.key: CHANCES[row.key[0]][index // 2 % 3] for index, row in enumerate(rows) if row.key != drop}
    return list(sensitivity_blocks(rows, samples(chances, seeds=5)))


def test_what_each_row_bears() -> None:
    """A: 60, 50, 30; B: 50, 50, 60, give or take two points."""
    (block,) = shown(specs())
    titles = [column.title for column in block.columns]
    assert titles == [
        "Best",
        "at learning_rate",
        "within 2 points",
        "within 10 points up to",
        "Average loss against the best",
    ]
    a, b = block.rows
    assert (a.cells[1].text, b.cells[1].text) == ("1e-4", "1e-3")
    assert b.cells[3].text == "1e-3"
    assert a.cells[0].mean == pytest.approx(60, abs=3)
    assert a.cells[4].mean == pytest.approx(60 - 140 / 3, abs=3)
    assert a.cells[4].low < a.cells[4].mean < a.cells[4].high
    assert "decides nothing" in block.notes[0]


def test_a_row_without_all_of_the_grid_is_not_shown() -> None:
    (block,) = shown(specs(), drop="a/1e-3")
    assert [row.label for row in block.rows] == ["B"]
    assert shown(specs(values=("1e-4",))) == []


def test_further_axes_are_environments() -> None:
    rows = [
        *specs(mix="default"),
        *(RowSpec(f"{row.key}/2", row.label, setting={**row.setting, "mix": "sparse"}) for row in specs()),
    ]
    (block,) = shown(rows)
    assert block.columns[-1].title == "Sensitivity"
    assert "2 combinations" in block.notes[0]
    assert plane_figure(block).axes[0].get_xlabel() == "sensitivity, points"


def test_the_plane_has_the_figures_of_the_block() -> None:
    (block,) = shown(specs())
    (axes,) = plane_figure(block).axes
    points = [container.lines[0].get_xydata()[0].tolist() for container in axes.containers]
    assert points == [[row.cells[4].mean, row.cells[0].mean] for row in block.rows]
    assert [text.get_text() for text in axes.texts] == ["A", "B"]
    assert axes.get_xlabel() == "average loss against the best, points"


def test_no_label_of_the_plane_lies_on_another() -> None:
    (block,) = shown(specs())
    rows = tuple(replace(block.rows[0], key=f"row {index}", label=f"Method {index} of many") for index in range(9))
    labels = plane_figure(replace(block, rows=rows)).axes[0].texts
    boxes = [Text.get_window_extent(label) for label in labels]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
