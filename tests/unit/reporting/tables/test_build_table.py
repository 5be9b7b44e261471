import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.optimize import brentq

from tepo.common.errors import UserError
from tepo.reporting.tables.build_table import RowSpec, TableSpec, build_table
from tepo.reporting.tables.render import as_text
from tepo.reporting.tables.table import IDENTICAL, SAME, Cell, Table, TableBlock, TableRow, p_text, verdict_in
from tests.support.answers import BENCHMARKS, ROWS, samples
from tests.unit.reporting.printed_tables import printed


def cell(table: Table, row: str, column: str, block: int = 0) -> Cell:
    found: TableBlock = table.blocks[block]
    line: TableRow = next(line for line in found.rows if line.key == row)
    return line.cells[[entry.key for entry in found.columns].index(column)]


def spec(rows: Sequence[RowSpec] = ROWS, **more: Any) -> TableSpec:
    return TableSpec(rows, BENCHMARKS, name="t", title="t", **more)


SPEC = spec(baseline="GRPO/DAPO")


def lines(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_text(table, "csv"))))


def test_what_was_not_measured_is_a_dash_and_averages_need_every_benchmark() -> None:
    frame = samples({"a": 0.3, "c": 0.7})
    frame = frame[(frame["row"] != "c") | (frame["benchmark"] == "add3")]
    table = build_table(frame, SPEC)
    assert cell(table, "c", "add3").mean is not None
    for column in ("gcd", "average", "delta"):
        assert cell(table, "c", column).mean is None
    assert cell(table, "d", "add3").mean is None
    assert any("still to be measured" in note and ROWS[2].label in note for note in table.notes)
    more = TableSpec(ROWS, {**BENCHMARKS, "lin": "lin"}, name="t", title="t")  # which no row was measured on
    assert cell(build_table(samples({"a": 0.3}), more), "a", "average").mean is None


def test_two_problems_give_no_interval_no_verdict_and_a_note() -> None:
    frame = samples({"a": 0.3, "c": 0.7})
    two = frame.groupby("benchmark")["problem"].transform(lambda names: names.isin(names.unique()[:2]))
    table = build_table(frame[two], SPEC)
    average = cell(table, "c", "average")
    assert (average.low, average.high, average.n) == (None, None, len(frame[two & (frame["row"] == "c")]))
    assert cell(table, "c", "verdict").text == "not comparable"
    assert "Fewer than 10 problems give no interval and no verdict." in table.notes


def test_nothing_measured_is_a_table_of_dashes() -> None:
    table = build_table(samples({"z": 0.5}).iloc[:0], SPEC)
    assert all(entry.mean is None for row in table.blocks[0].rows for entry in row.cells)
    assert table.notes == ("nothing measured yet",)


def test_verdicts_tell_a_gain_from_noise(table: Table) -> None:
    assert cell(table, "a", "verdict").text == "baseline"
    assert cell(table, "b", "verdict").text == "not decided (p = .67)"
    assert cell(table, "c", "verdict").text == "better (p = .013)"
    assert cell(table, "d", "verdict").text == ""
    delta = cell(table, "c", "delta")
    assert delta.mean == pytest.approx(cell(table, "c", "average").mean - cell(table, "a", "average").mean)
    assert delta.low > 0


def shown(table: Table, row: str) -> str:
    return next(line.label for line in table.blocks[0].rows if line.key == row)


@pytest.mark.parametrize(("seeds", "words"), [(1, "1 seed: no verdict"), (2, "2 seeds: no verdict")])
def test_fewer_than_three_seeds_give_a_difference_without_verdict_interval_and_bold(seeds: int, words: str) -> None:
    frame = samples({"a": 0.3, "b": 0.9, "c": 0.7}, seeds=3)
    few = frame["seed"] < seeds
    for kept in (few, (frame["row"] != "a") | few):  # of all rows, of the baseline
        table = build_table(frame[kept], SPEC)
        assert cell(table, "b", "verdict").text == cell(table, "c", "verdict").text == words
        delta = cell(table, "b", "delta")
        assert (delta.low, delta.high) == (None, None)
        assert delta.mean == pytest.approx(60, abs=10)
        assert [(line["text"], line["low"]) for line in lines(table) if line["column"] == "verdict"][1:3] == [
            (words, "")
        ] * 2
        assert "interval" not in next(note for note in table.notes if note.startswith("Δ Avg.")) or kept is not few
    table = build_table(frame[few], SPEC)
    assert {entry.rank for row in table.blocks[0].rows for entry in row.cells} == {0}
    assert any(note.startswith("Fewer than 3 seeds: differences of these trained models") for note in table.notes)
    assert not any(note.startswith(("Verdict: p", "Bold")) for note in table.notes)
    table = build_table(frame[(frame["row"] != "b") | few], SPEC)
    assert cell(table, "b", "verdict").text == words
    assert verdict_in(cell(table, "c", "verdict").text) == "better"
    assert verdict_in(words) == "no verdict"
    assert [cell(table, key, "average").rank for key in "abc"] == [0, 0, 0], "the best has too few seeds"
    table = build_table(frame[(frame["row"] != "c") | few], SPEC)
    assert [cell(table, key, "average").rank for key in "abc"] == [0, 1, 1], "c is not told apart from the best"


def test_the_family_is_what_is_declared_whatever_was_measured() -> None:
    frame = samples({"a": 0.3, "b": 0.33, "c": 0.4}, seeds=3)
    whole = {one.row.key: one.measured for one in build_table(frame, SPEC).comparisons}
    assert whole["c"].p == pytest.approx(3 * whole["c"].question.estimate.p)  # d was not run
    part = {one.row.key: one.measured for one in build_table(frame[frame["row"] != "b"], SPEC).comparisons}
    assert part["c"] == whole["c"]
    wide = {one.row.key: one.measured for one in build_table(frame, replace(SPEC, family=30)).comparisons}
    assert wide["c"].p == pytest.approx(30 * whole["c"].question.estimate.p)


def test_replicas_are_marked_and_their_range_is_the_floor() -> None:
    rows = [replace(row, same_as="GRPO/DAPO") if row.key == "b" else row for row in ROWS]
    frame = samples({"a": 0.3, "b": 0.4, "c": 0.7}, seeds=3)
    table = build_table(frame, spec(rows, baseline="GRPO/DAPO"))
    assert cell(table, "b", "verdict").text == IDENTICAL
    assert cell(table, "b", "delta").mean is not None
    assert [shown(table, key) for key in "abc"] == [ROWS[0].label, f"{ROWS[1].label} {SAME}", ROWS[2].label]
    low, high = (cell(table, key, "average").mean for key in "ab")
    assert any(f"GRPO/DAPO and {ROWS[1].label}: {low:.1f} to {high:.1f}." in note for note in table.notes)
    assert any("Holm's over the 3 comparisons that this study declares" in note for note in table.notes)


def test_rows_that_agree_in_every_cell_are_marked() -> None:
    frame = samples({"a": 0.3, "c": 0.7}, seeds=3)
    frame = pd.concat([frame, frame[frame["row"] == "c"].assign(row="b")], ignore_index=True)
    table = build_table(frame, spec())
    assert [shown(table, key).endswith(SAME) for key in "abcd"] == [False, True, True, False]
    assert f"{SAME} Equal in every cell: {ROWS[1].label} and {ROWS[2].label}." in table.notes


def test_p_is_printed_on_its_side_of_the_level() -> None:
    printed = {p: p_text(p) for p in (0.21, 0.012, 0.0496, 0.04999, 0.0502, 0.0004, 0.9999, 1.0)}
    assert list(printed.values()) == [
        "p = .21", "p = .012", "p = .0496", "p = .04999", "p = .050", "p < .001", "p = 1", "p = 1",
    ]  # fmt: skip


def test_bold_is_the_best_and_what_cannot_be_told_apart_from_it() -> None:
    chances = {"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0}
    frame = samples(chances, problems=250)
    for row, right in {"a": 100, "b": 100, "c": 99, "d": 50}.items():
        frame.loc[frame["row"] == row, "right"] = np.tile((np.arange(1000) < right).astype(int), 6)
    table = build_table(frame, spec())
    assert [cell(table, key, "add3").rank for key in "abcd"] == [1, 1, 1, 0]
    assert any(note.startswith("Bold: the best of a column, and what cannot be told apart") for note in table.notes)
    few = build_table(frame[frame["problem"].str.endswith(("-0", "-1"))], spec())
    assert cell(few, "a", "add3").low is None
    assert [cell(few, key, "add3").rank for key in "abcd"] == [0, 0, 0, 0], "without intervals nothing is told apart"


def test_the_note_says_the_smallest_difference_that_bold_can_mean() -> None:
    """Three seeds, ten problems: the best row has 10, 9 and 8 of them, b has 6 and c 4, 0 and 2. Half of each by
    scipy, of Student's t of seeds and of problems, each weighted by its share of the variance."""
    right = {"a": (10, 9, 8), "b": (6, 6, 6), "c": (4, 0, 2)}
    frame = pd.DataFrame(
        [(row, seed, "add3", f"p{problem}", int(problem < count), 1)
         for row, counts in right.items() for seed, count in enumerate(counts) for problem in range(10)],
        columns=["row", "seed", "benchmark", "problem", "right", "samples"],
    )  # fmt: skip
    halves = []
    for other in "bc":
        x = np.array(
            [[(p < m) - (p < n) for p in range(10)] for m, n in zip(right["a"], right[other], strict=True)], float
        )
        of_seeds, of_problems = x.mean(axis=1).var(ddof=1) / 3, x.mean(axis=0).var(ddof=1) / 10
        share = of_seeds / (of_seeds + of_problems)
        t = brentq(lambda t, share=share: share * stats.t.sf(t, 2) + (1 - share) * stats.t.sf(t, 9) - 0.025, 1, 9)
        halves.append(100 * t * (of_seeds + of_problems) ** 0.5)
    rows = [RowSpec(key, key) for key in right]
    table = build_table(frame, TableSpec(rows, {"add3": "add3"}, name="t", title="t"))
    least = f"Bold in Avg. cannot mean less than {sum(halves) / 2:.1f} points here"
    assert any(least in note for note in table.notes), (halves, table.notes)
    assert [cell(table, key, "average").rank for key in "abc"] == [1, int(halves[0] >= 30), int(halves[1] >= 70)]


def test_models_are_ranked_and_compared_apart() -> None:
    rows = [
        RowSpec(f"{model}-{label}", label, label, model=model) for model in ("7B", "14B") for label in ("grpo", "tepo")
    ]
    frame = samples({"7B-grpo": 0.2, "7B-tepo": 0.4, "14B-grpo": 0.6, "14B-tepo": 0.8})
    reference = {
        "7B-tepo": printed("table1", method="tepo"),
        "14B-tepo": printed("table1", method="tepo", model="Qwen3-14B"),
    }
    table = build_table(frame, spec(rows, baseline="grpo", reference=reference))
    assert [block.title for block in table.blocks][:2] == ["Measured: 7B", "Measured: 14B"]
    assert "Qwen3-14B" in table.blocks[3].title
    assert [cell(table, key, "add3", block).rank for key, block in (("7B-tepo", 0), ("14B-tepo", 1))] == [1, 1]
    assert cell(table, "14B-tepo", "delta", 1).mean == pytest.approx(20, abs=6)
    assert cell(table, "7B-tepo", "delta").mean == pytest.approx(20, abs=6)


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match="did you mean 'GRPO/DAPO'"):
        build_table(samples({"a": 0.5}), spec(ROWS, baseline="GRPO/DAP"))


@pytest.mark.parametrize("measured", [0, 7])  # 7 trained nothing: the study may begin with another seed
def test_the_untrained_model_is_compared_with_every_seed(measured: int) -> None:
    rows = [RowSpec("base", "Base", "base"), RowSpec("a", "GRPO/DAPO", "grpo_dapo")]
    frame = samples({"base": 0.1, "a": 0.5})
    frame = frame[(frame["row"] != "base") | (frame["seed"] == 0)]
    frame.loc[frame["row"] == "base", "seed"] = measured
    table = build_table(frame, spec(rows, baseline="GRPO/DAPO"))
    assert cell(table, "base", "delta").mean == pytest.approx(
        cell(table, "base", "average").mean - cell(table, "a", "average").mean
    )
    assert verdict_in(cell(table, "base", "verdict").text) == "worse"
    assert not any("seeds" in note and "7" in note for note in table.notes)
    assert not any("still to be measured" in note for note in table.notes)
