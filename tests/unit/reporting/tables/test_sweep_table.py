from dataclasses import replace

import pytest

from tepo.reporting.tables.build_table import RowSpec, TableSpec, build_table
from tepo.reporting.tables.sweep_table import LOST, lost_blocks, sweep_blocks
from tepo.reporting.tables.table import SAME, Cell, Column, Table, TableBlock, TableRow, verdict_in
from tests.support.answers import BENCHMARKS, samples

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


def grid(**means: tuple[float | None, ...]) -> TableBlock:
    rows = tuple(
        TableRow(key, key, tuple(map(Cell, own)), "base" if key == "u" else "tepo") for key, own in means.items()
    )
    columns = tuple(Column(f"rate={n}", f"rate={n}") for n in range(len(rows[0].cells)))
    return TableBlock("Average accuracy by rate", columns, rows, axis="rate")


@pytest.mark.parametrize(
    ("grids", "lost"),
    [
        ((grid(u=(9.0, 9.0, 9.0), a=(60.0, 50.0, 10.0), b=(20.0, 50.0, 50.0)),), {"a": 20.0, "b": 10.0}),
        ((grid(a=(60.0, 50.0, 10.0), b=(20.0, None, 50.0)),), {"a": 20.0}),
        ((grid(a=(60.0, 40.0), b=(5.0, 5.0)), grid(a=(10.0, 50.0), b=(None, 5.0))), {"a": 15.0}),
    ],
)
def test_what_a_row_loses_is_from_all_of_its_grid(grids: tuple[TableBlock, ...], lost: dict[str, float]) -> None:
    (block,) = lost_blocks(grids)
    assert {row.key: row.cells[0].mean for row in block.rows} == pytest.approx(lost)
    assert [column.key for column in block.columns] == [LOST]
    assert "a value of rate drawn blindly" in block.notes[0]


@pytest.mark.parametrize("one", [grid(a=(60.0,)), grid(a=(60.0, None))])
def test_nothing_is_lost_over_one_value_or_an_unfinished_grid(one: TableBlock) -> None:
    assert lost_blocks([one]) == ()
