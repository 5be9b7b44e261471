"""Samples to tables: the numbers, the dashes, the verdicts, and what is refused."""

import numpy as np
import pandas as pd
import pytest

from tepo.common.errors import UserError
from tepo.reporting.paper.reference import PAPER_BENCHMARKS, RowKey, reference_row
from tepo.reporting.tables.build_table import RowSpec, TableSpec, build_table
from tepo.reporting.tables.table import Block, Cell, Table, TableRow
from tests.unit.reporting.samples import BENCHMARKS, ROWS, samples


def cell(table: Table, row: str, column: str, block: int = 0) -> Cell:
    found: Block = table.blocks[block]
    line: TableRow = next(line for line in found.rows if line.key == row)
    return line.cells[[entry.key for entry in found.columns].index(column)]


def test_rows_and_columns_in_study_order(table: Table) -> None:
    measured, paper = table.blocks
    assert [row.key for row in measured.rows] == ["a", "b", "c", "d"]
    assert [column.title for column in measured.columns] == ["add3", "gcd", "Avg.", "Mean", "Δ Avg.", "Verdict"]
    assert [column.title for column in paper.columns] == [*PAPER_BENCHMARKS.values(), "Avg."]
    assert cell(table, "c", "average", block=1).mean == 32.59


def test_means_are_those_of_the_samples() -> None:
    frame = samples({"a": 0.3, "c": 0.7})
    extra = frame[(frame["benchmark"] == "gcd") & (frame["sample"] < 2)].assign(sample=lambda part: part["sample"] + 4)
    frame = pd.concat([frame, extra], ignore_index=True)  # gcd with 6 samples a problem: the two averages part
    table = build_table(frame, TableSpec(ROWS, BENCHMARKS, name="t", title="t"))
    mine = frame[frame["row"] == "c"]
    assert cell(table, "c", "add3").mean == pytest.approx(100 * mine[mine["benchmark"] == "add3"]["correct"].mean())
    assert cell(table, "c", "average").mean == pytest.approx(100 * mine["correct"].mean())
    assert cell(table, "c", "mean").mean == pytest.approx(100 * mine.groupby("benchmark")["correct"].mean().mean())
    assert cell(table, "c", "average").n == len(mine)
    assert cell(table, "c", "average").mean != pytest.approx(cell(table, "c", "mean").mean, abs=1e-6)


def test_what_was_not_measured_is_a_dash_and_averages_need_every_benchmark() -> None:
    frame = samples({"a": 0.3, "c": 0.7})
    frame = frame[(frame["row"] != "c") | (frame["benchmark"] == "add3")]
    table = build_table(frame, TableSpec(ROWS, BENCHMARKS, name="t", title="t", baseline="GRPO/DAPO"))
    assert cell(table, "c", "add3").mean is not None
    for column in ("gcd", "average", "mean", "delta"):
        assert cell(table, "c", column).mean is None
    assert cell(table, "d", "add3").mean is None
    assert any("still to be measured" in note and ROWS[2].label in note for note in table.notes)


def test_no_average_when_a_benchmark_has_no_samples_at_all() -> None:
    table = build_table(
        samples({"a": 0.3, "c": 0.5}),
        TableSpec(ROWS, {**BENCHMARKS, "lin": "lin"}, name="t", title="t", baseline="GRPO/DAPO"),
    )
    assert cell(table, "a", "gcd").mean is not None
    assert cell(table, "a", "average").mean is None
    assert cell(table, "c", "delta").mean is None


def test_two_problems_give_no_interval_no_verdict_and_a_note() -> None:
    frame = samples({"a": 0.3, "c": 0.7})
    two = frame.groupby("benchmark")["problem"].transform(lambda names: names.isin(names.unique()[:2]))
    table = build_table(frame[two], TableSpec(ROWS, BENCHMARKS, name="t", title="t", baseline="GRPO/DAPO"))
    average = cell(table, "c", "average")
    assert (average.low, average.high, average.n) == (None, None, len(frame[two & (frame["row"] == "c")]))
    assert cell(table, "c", "verdict").text == "not comparable"
    assert "Fewer than 10 problems give no interval and no verdict." in table.notes


def test_nothing_measured_is_a_table_of_dashes() -> None:
    table = build_table(
        samples({"z": 0.5}).iloc[:0], TableSpec(ROWS, BENCHMARKS, name="t", title="t", baseline="GRPO/DAPO")
    )
    assert all(entry.mean is None for row in table.blocks[0].rows for entry in row.cells)
    assert table.notes == ("nothing measured yet",)


def test_verdicts_tell_a_gain_from_noise(table: Table) -> None:
    assert cell(table, "a", "verdict").text == "baseline"
    assert cell(table, "b", "verdict").text == "within noise"
    assert cell(table, "c", "verdict").text == "better"
    assert cell(table, "d", "verdict").text == ""
    delta = cell(table, "c", "delta")
    assert delta.mean == pytest.approx(cell(table, "c", "average").mean - cell(table, "a", "average").mean)
    assert delta.low > 0


def test_other_problems_are_not_compared() -> None:
    frame = samples({"a": 0.3, "c": 0.9})
    frame.loc[frame["row"] == "c", "problem"] += "-other"
    table = build_table(frame, TableSpec(ROWS, BENCHMARKS, name="t", title="t", baseline="GRPO/DAPO"))
    assert cell(table, "c", "verdict").text == "not comparable"
    assert cell(table, "c", "delta").mean is None


def test_best_and_second_with_ties_at_the_printed_precision() -> None:
    chances = {"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0}
    frame = samples(chances, seeds=1, problems=250)
    for row, right in {"a": 100, "b": 100, "c": 99, "d": 50}.items():
        frame.loc[frame["row"] == row, "correct"] = np.tile(np.arange(1000) < right, 2)
    table = build_table(frame, TableSpec(ROWS, BENCHMARKS, name="t", title="t"))
    assert [cell(table, key, "add3").rank for key in "abcd"] == [1, 1, 2, 0]


def test_models_are_ranked_and_compared_apart() -> None:
    rows = [
        RowSpec(f"{model}-{label}", label, label, model=model) for model in ("7B", "14B") for label in ("grpo", "tepo")
    ]
    frame = samples({"7B-grpo": 0.2, "7B-tepo": 0.4, "14B-grpo": 0.6, "14B-tepo": 0.8})
    reference = {
        "7B-tepo": reference_row(RowKey("table1", method="tepo")),
        "14B-tepo": reference_row(RowKey("table1", method="tepo", model="Qwen3-14B")),
    }
    table = build_table(frame, TableSpec(rows, BENCHMARKS, name="t", title="t", baseline="grpo", reference=reference))
    assert [block.title for block in table.blocks][:2] == ["Measured: 7B", "Measured: 14B"]
    assert "Qwen3-14B" in table.blocks[3].title
    assert [
        cell(table, key, "add3", block).rank for key, block in (("7B-tepo", 0), ("7B-grpo", 0), ("14B-tepo", 1))
    ] == [1, 2, 1]
    assert cell(table, "14B-tepo", "delta", 1).mean == pytest.approx(20, abs=6)
    assert cell(table, "7B-tepo", "delta").mean == pytest.approx(20, abs=6)


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match="did you mean 'GRPO/DAPO'"):
        build_table(samples({"a": 0.5}), TableSpec(ROWS, BENCHMARKS, name="t", title="t", baseline="GRPO/DAP"))
    with pytest.raises(UserError, match="sample"):
        build_table(samples({"a": 0.5}).drop(columns="sample"), TableSpec(ROWS, BENCHMARKS, name="t", title="t"))
    frame = samples({"a": 0.5})
    with pytest.raises(UserError, match="different problems"):
        build_table(
            frame[(frame["seed"] == 0) | (frame["problem"] != "gcd-3")],
            TableSpec(ROWS, BENCHMARKS, name="t", title="t"),
        )


@pytest.mark.parametrize("measured", [0, 7])  # 7 trained nothing: the study may begin with another seed
def test_the_untrained_model_is_compared_with_every_seed(measured: int) -> None:
    rows = [RowSpec("base", "Base", "base"), RowSpec("a", "GRPO/DAPO", "grpo_dapo")]
    frame = samples({"base": 0.1, "a": 0.5})
    frame = frame[(frame["row"] != "base") | (frame["seed"] == 0)]
    frame.loc[frame["row"] == "base", "seed"] = measured
    table = build_table(frame, TableSpec(rows, BENCHMARKS, name="t", title="t", baseline="GRPO/DAPO"))
    assert cell(table, "base", "delta").mean == pytest.approx(
        cell(table, "base", "average").mean - cell(table, "a", "average").mean
    )
    assert cell(table, "base", "verdict").text == "worse"
    assert not any("seeds" in note and "7" in note for note in table.notes)
    assert not any("still to be measured" in note for note in table.notes)
