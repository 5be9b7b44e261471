import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tepo.evaluation.statistics.answer import Answer, Question
from tepo.evaluation.statistics.intervals import UNKNOWN, Estimate, Tails
from tepo.evaluation.statistics.samples import AVERAGE
from tepo.evaluation.statistics.verdict import DeltaVerdict
from tepo.reporting.printed import PaperRow
from tepo.reporting.tables.build_table import RowSpec, TableSpec, build_table
from tepo.reporting.tables.paper_comparisons import outcome, paper_comparisons
from tepo.reporting.tables.table import Cell, RowComparison, Table, TableRow
from tests.support.answers import BENCHMARKS, ROWS, samples


def answer(delta: float, error: float, p: float, seeds: int = 3) -> Answer:
    """p: corrected."""
    estimate = Estimate.symmetric(delta, error, Tails(100.0))
    asked = Question("row", "base", AVERAGE, estimate, (delta,) * seeds, fewest=3)
    return Answer(asked, p, math.nan if math.isnan(p) else 1.0)


VERDICTS = {
    DeltaVerdict.BETTER: answer(0.02, 0.005, 0.01),
    DeltaVerdict.WORSE: answer(-0.02, 0.005, 0.01),
    DeltaVerdict.NOT_DECIDED: answer(0.01, 0.005, 0.4),
    DeltaVerdict.NO_VERDICT: answer(0.01, 0.005, math.nan, seeds=2),
    DeltaVerdict.NOT_COMPARABLE: Answer(Question("row", "base", AVERAGE, Estimate(0.01, *[math.nan] * 3, UNKNOWN))),
}


def printed(average: float) -> PaperRow:
    return PaperRow("A paper", {"AIME24": average}, average, "x", "x")


def table(rows: Sequence[RowSpec] = ROWS, **averages: float) -> Table:
    """Rows a (the baseline), b (the same), c (better) and d (not run), with these printed averages."""
    reference = {key: printed(average) for key, average in averages.items()}
    spec = TableSpec(rows, BENCHMARKS, name="made_up", title="Made up", baseline="GRPO/DAPO", reference=reference)
    return build_table(samples({"a": 0.3, "b": 0.3, "c": 0.7}, seeds=3), spec)


def test_only_rows_that_the_paper_printed_are_compared_and_signs_decide() -> None:
    measured = table(a=30.0, b=29.0, c=31.5, d=33.0)
    claims = paper_comparisons([measured, table(a=30.0, c=28.0)])
    (block,) = claims.blocks
    rows = block.rows
    assert [row.key for row in rows] == ["made_up/b", "made_up/c", "made_up/d", "made_up/c"]
    assert [row.cells[0].mean for row in rows] == pytest.approx([-1.0, 1.5, 3.0, -2.0])
    assert [row.cells[2].text for row in rows] == [
        "does not show: not decided (p = .94)",
        "shows: better (p = .013)",
        "not measured",
        "opposite: better (p = .013)",
    ]
    assert claims.notes[0].startswith("1 of 4 ")
    shown = {row.key: row.cells[-2:] for row in measured.blocks[0].rows}
    for row in rows[:3]:  # the same cell as in its table
        assert row.cells[1] == shown[row.key.removeprefix("made_up/")][0]
    assert rows[2].cells[1] == Cell()


def test_a_row_that_trains_as_another_one_neither_shows_nor_does_not() -> None:
    rows = [replace(row, same_as=ROWS[2].label) if row.key == "b" else row for row in ROWS]
    claims = paper_comparisons([table(rows, a=30.0, b=29.0, c=31.5)])
    assert claims.blocks[0].rows[0].cells[2].text == f"trains as {ROWS[2].label} here"
    assert claims.notes[0].startswith("1 of 1 ")


@pytest.mark.parametrize(
    ("paper", "here", "words"),
    [
        (-1.0, VERDICTS[DeltaVerdict.WORSE], "shows: worse (p = .010)"),
        (1.0, VERDICTS[DeltaVerdict.WORSE], "opposite: worse (p = .010)"),
        (1.0, Answer(Question("row", "base", AVERAGE)), "not measured"),
        (1.0, VERDICTS[DeltaVerdict.NOT_DECIDED], "does not show: not decided (p = .40)"),
        (1.0, VERDICTS[DeltaVerdict.NO_VERDICT], "2 seeds: no verdict"),
        (1.0, VERDICTS[DeltaVerdict.NOT_COMPARABLE], "does not show: not comparable"),
    ],
)
def test_words(paper: float, here: Answer | None, words: str) -> None:
    row = TableRow("r", "r", ())
    assert outcome(RowComparison(row, row, paper, here)) == words
