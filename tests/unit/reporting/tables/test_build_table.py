from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.optimize import brentq

from tepo.reporting.printed import PaperRow
from tepo.reporting.tables.build_table import RowSpec, TableSpec, build_table
from tepo.reporting.tables.paper_comparisons import paper_comparisons
from tepo.reporting.tables.sweep_table import LOST, lost_blocks, sweep_blocks
from tepo.reporting.tables.table import IDENTICAL, SAME, Cell, Column, Table, TableBlock, TableRow, p_text, verdict_in
from tests.support.answers import BENCHMARKS, ROWS, samples
from tests.unit.reporting.printed_tables import printed


def cell(table: Table, row: str, column: str, block: int = 0) -> Cell:
    return table.blocks[block].column(column)[row]


def spec(rows: Sequence[RowSpec] = ROWS, **more: Any) -> TableSpec:
    return TableSpec(rows, BENCHMARKS, name="t", title="t", **more)


SPEC = spec(baseline="GRPO/DAPO")


def test_what_was_not_measured_is_a_dash_and_averages_need_every_benchmark() -> None:
    frame = samples({"a": 0.3, "c": 0.7})
    frame = frame[(frame["row"] != "c") | (frame["benchmark"] == "add3")]
    table = build_table(frame, SPEC)
    assert cell(table, "c", "add3").mean is not None
    for column in ("gcd", "average", "delta"):
        assert cell(table, "c", column).mean is None
    assert cell(table, "d", "add3").mean is None
    more = TableSpec(ROWS, {**BENCHMARKS, "lin": "lin"}, name="t", title="t")  # which no row was measured on
    assert cell(build_table(samples({"a": 0.3}), more), "a", "average").mean is None
    nothing = build_table(samples({"z": 0.5}).iloc[:0], SPEC)
    assert all(entry.mean is None for row in nothing.blocks[0].rows for entry in row.cells)


def test_verdicts_tell_a_gain_from_noise(table: Table) -> None:
    assert cell(table, "a", "verdict").text == "baseline"
    assert cell(table, "b", "verdict").text == "not decided (p = .67)"
    assert cell(table, "c", "verdict").text == "better (p = .013)"
    assert cell(table, "d", "verdict").text == ""
    delta = cell(table, "c", "delta")
    assert delta.mean == pytest.approx(cell(table, "c", "average").mean - cell(table, "a", "average").mean)
    assert delta.low > 0


@pytest.mark.parametrize(("seeds", "words"), [(1, "1 seed: no verdict"), (2, "2 seeds: no verdict")])
def test_fewer_than_three_seeds_give_a_difference_without_verdict_interval_and_bold(seeds: int, words: str) -> None:
    frame = samples({"a": 0.3, "b": 0.9, "c": 0.7}, seeds=3)
    few = frame["seed"] < seeds
    for kept in (few, (frame["row"] != "a") | few):  # of all rows, of the baseline
        table = build_table(frame[kept], SPEC)
        assert cell(table, "b", "verdict").text == cell(table, "c", "verdict").text == words
        delta = cell(table, "b", "delta")
        assert (delta.mean, delta.low, delta.high) == (pytest.approx(60, abs=10), None, None)
    table = build_table(frame[(frame["row"] != "b") | few], SPEC)
    assert cell(table, "b", "verdict").text == words
    assert verdict_in(cell(table, "c", "verdict").text) == "better"
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
    labels = [row.label for row in table.blocks[0].rows]
    assert labels[:3] == [ROWS[0].label, f"{ROWS[1].label} {SAME}", ROWS[2].label]
    low, high = (cell(table, key, "average").mean for key in "ab")
    assert any(f"GRPO/DAPO and {ROWS[1].label}: {low:.1f} to {high:.1f}." in note for note in table.notes)


def test_p_is_printed_on_its_side_of_the_level() -> None:
    texts = [p_text(p) for p in (0.21, 0.012, 0.0496, 0.04999, 0.0502, 0.0004, 0.9999)]
    assert texts == ["p = .21", "p = .012", "p = .0496", "p = .04999", "p = .050", "p < .001", "p = 1"]


def test_bold_is_the_best_and_what_cannot_be_told_apart_from_it() -> None:
    frame = samples(dict.fromkeys("abcd", 0.0), problems=250)
    for row, right in {"a": 100, "b": 100, "c": 99, "d": 50}.items():
        frame.loc[frame["row"] == row, "right"] = np.tile((np.arange(1000) < right).astype(int), 6)
    table = build_table(frame, spec())
    assert [cell(table, key, "add3").rank for key in "abcd"] == [1, 1, 1, 0]
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
        counts = zip(right["a"], right[other], strict=True)
        x = np.array([[(p < m) - (p < n) for p in range(10)] for m, n in counts], float)
        of_seeds, of_problems = x.mean(axis=1).var(ddof=1) / 3, x.mean(axis=0).var(ddof=1) / 10
        share = of_seeds / (of_seeds + of_problems)
        t = brentq(lambda t, share=share: share * stats.t.sf(t, 2) + (1 - share) * stats.t.sf(t, 9) - 0.025, 1, 9)
        halves.append(100 * t * (of_seeds + of_problems) ** 0.5)
    rows = [RowSpec(key, key) for key in right]
    table = build_table(frame, TableSpec(rows, {"add3": "add3"}, name="t", title="t"))
    least = f"Bold in Avg. cannot mean less than {sum(halves) / 2:.1f} points here"
    assert any(least in note for note in table.notes), (halves, table.notes)
    assert [cell(table, key, "average").rank for key in "abc"] == [1, int(halves[0] >= 30), int(halves[1] >= 70)]


SIZES = {7: "2.5-7", 14: "3-14"}


def test_models_are_ranked_and_compared_apart() -> None:
    chances = {"7B-grpo": 0.2, "7B-tepo": 0.4, "14B-grpo": 0.6, "14B-tepo": 0.8}
    rows = [RowSpec(key, key.partition("-")[2], model=key.partition("-")[0]) for key in chances]
    reference = {f"{size}B-tepo": printed("table1", "tepo", f"Qwen{name}B") for size, name in SIZES.items()}
    table = build_table(samples(chances), spec(rows, baseline="grpo", reference=reference))
    assert [block.title for block in table.blocks][:2] == ["Measured: 7B", "Measured: 14B"]
    assert "Qwen3-14B" in table.blocks[3].title
    for block, row in enumerate(("7B-tepo", "14B-tepo")):
        assert cell(table, row, "add3", block).rank == 1
        assert cell(table, row, "delta", block).mean == pytest.approx(20, abs=6)


@pytest.mark.parametrize("measured", [0, 7])  # 7 trained nothing: the study may begin with another seed
def test_the_untrained_model_is_compared_with_every_seed(measured: int) -> None:
    rows = [RowSpec("base", "Base", "base"), RowSpec("a", "GRPO/DAPO", "grpo_dapo")]
    frame = samples({"base": 0.1, "a": 0.5})
    frame = frame[(frame["row"] != "base") | (frame["seed"] == 0)]
    frame.loc[frame["row"] == "base", "seed"] = measured
    table = build_table(frame, spec(rows, baseline="GRPO/DAPO"))
    untrained, trained = (cell(table, key, "average").mean for key in ("base", "a"))
    assert cell(table, "base", "delta").mean == pytest.approx(untrained - trained)
    assert verdict_in(cell(table, "base", "verdict").text) == "worse"


RATES = ("1e-4", "2e-4", "1e-3")
CHANCES = {"a": (0.6, 0.5, 0.3), "b": (0.5, 0.5, 0.6)}  # a is better at the first rate, b at the last


@pytest.fixture(scope="module")
def rows() -> list[RowSpec]:
    methods = {"a": "grpo_dapo", "b": "tepo"}
    return [
        RowSpec(f"{row}/{rate}", row.upper(), methods[row], setting={"learning_rate": rate})
        for rate in RATES
        for row in "ab"
    ]


@pytest.fixture(scope="module")
def long(rows: list[RowSpec]) -> Table:
    chances = {row.key: CHANCES[row.key[0]][index // 2] for index, row in enumerate(rows)}
    return build_table(samples(chances, seeds=5), spec(rows, baseline="A"))


def test_each_cell_is_the_average_of_the_long_form_at_that_setting(rows: list[RowSpec], long: Table) -> None:
    (block,) = sweep_blocks(rows, long.blocks)
    assert [column.title for column in block.columns] == list(RATES)
    assert [row.label for row in block.rows] == ["A", "B"]
    for row in block.rows:
        for index, rate in enumerate(RATES):
            average, short = cell(long, f"{row.label.lower()}/{rate}", "average", index), row.cells[index]
            assert (short.mean, short.low, short.high, short.n) == (average.mean, average.low, average.high, average.n)
    assert [cell.rank for cell in block.rows[0].cells][::2] == [1, 0]  # the best of a column is the best at a setting
    assert [cell.rank for cell in block.rows[1].cells][::2] == [0, 1]


def test_a_row_is_compared_with_the_baseline_at_its_own_setting(long: Table) -> None:
    """Against the baseline at one fixed setting, b at 1e-3 would tie with a at 1e-4."""
    verdicts = [[verdict_in(row.cells[-1].text) for row in block.rows] for block in long.blocks]
    assert verdicts == [["baseline", "worse"], ["baseline", "not decided"], ["baseline", "better"]]
    for block, (one, rate) in enumerate(zip(long.comparisons, RATES, strict=True)):
        assert (one.row.key, one.baseline.key) == (f"b/{rate}", f"a/{rate}")
        b, a = (cell(long, key, "average", block).mean for key in (one.row.key, one.baseline.key))
        assert one.cell.mean == pytest.approx(b - a)


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
        ((grid(a=(60.0,)),), {}),
        ((grid(a=(60.0, None)),), {}),
    ],
)
def test_what_a_row_loses_is_from_all_of_its_grid(grids: tuple[TableBlock, ...], lost: dict[str, float]) -> None:
    blocks = lost_blocks(grids)
    assert {key: one.mean for block in blocks for key, one in block.column(LOST).items()} == pytest.approx(lost)
    assert len(blocks) == bool(lost)


def beside(rows: Sequence[RowSpec] = ROWS, **averages: float) -> Table:
    """Rows a (the baseline), b (the same), c (better) and d (not run), with these printed averages."""
    reference = {key: PaperRow("A paper", {"AIME24": mean}, mean, "x", "x") for key, mean in averages.items()}
    frame = samples({"a": 0.3, "b": 0.3, "c": 0.7}, seeds=3)
    return build_table(frame, spec(rows, baseline="GRPO/DAPO", reference=reference))


def test_only_rows_that_the_paper_printed_are_compared_and_signs_decide() -> None:
    measured = beside(a=30.0, b=29.0, c=31.5, d=33.0)
    (block,) = paper_comparisons([measured, beside(a=30.0, c=28.0)]).blocks
    rows = block.rows
    assert [row.key for row in rows] == ["t/b", "t/c", "t/d", "t/c"]
    assert [row.cells[0].mean for row in rows] == pytest.approx([-1.0, 1.5, 3.0, -2.0])
    words = [row.cells[2].text.partition(":")[0] for row in rows]
    assert words == ["does not show", "shows", "not measured", "opposite"]
    for row in rows[:3]:
        assert row.cells[1] == cell(measured, row.key.removeprefix("t/"), "delta"), "the same cell as in its table"
    assert rows[2].cells[1] == Cell()
