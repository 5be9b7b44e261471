"""The papers' differences beside ours."""

import pytest

from tepo.reporting.claims import claims_table, outcome
from tepo.reporting.table import MISSING, Block, Cell, Column, Kind, Row, Table

SCORE, DELTA, VERDICT = (
    Column("average", "Avg."),
    Column("delta", "Δ", Kind.DELTA),
    Column("verdict", "Verdict", Kind.TEXT),
)


def table(*rows: tuple[str, float | None, str, float | None]) -> Table:
    """Rows of (label, measured difference, verdict, printed average)."""
    measured = tuple(
        Row(
            label,
            label,
            (Cell(50.0), MISSING if delta is None else Cell(delta, delta - 1, delta + 1), Cell(text=verdict)),
        )
        for label, delta, verdict, _ in rows
    )
    printed = tuple(Row(label, label, (Cell(average),)) for label, _, _, average in rows if average is not None)
    return Table(
        "made_up",
        "Made up",
        (Block("Measured", (SCORE, DELTA, VERDICT), measured), Block("As printed", (SCORE,), printed)),
    )


def test_only_rows_that_the_paper_printed_are_compared_and_signs_decide() -> None:
    ours = [
        ("b", None, "baseline", 30.0),
        ("up", 2.0, "better", 31.5),
        ("down", -2.0, "worse", 31.0),
        ("ours", 5.0, "better", None),
    ]
    found = claims_table([table(*ours, ("noise", 0.5, "within noise", 29.0), ("missing", None, "", 33.0))])
    rows = {row.label.split()[0]: row for row in found.blocks[0].rows}
    assert list(rows) == ["up", "down", "noise", "missing"]
    assert rows["up"].cells[0].mean == pytest.approx(1.5)
    assert (rows["up"].cells[1].low, rows["up"].cells[1].high) == (1.0, 3.0)
    assert [row.cells[2].text for row in rows.values()] == [
        "shows",
        "opposite: worse",
        "does not show: within noise",
        "not measured",
    ]
    assert found.notes[0].startswith("1 of 4 ")


def test_a_table_without_a_printed_baseline_gives_nothing() -> None:
    assert claims_table([table(("b", None, "baseline", None), ("up", 2.0, "better", 31.5))]).blocks[0].rows == ()


@pytest.mark.parametrize(
    ("paper", "here", "verdict", "words"),
    [
        (-1.0, -2.0, "worse", "shows"),
        (-1.0, 2.0, "better", "opposite: better"),
        (1.0, None, "", "not measured"),
        (1.0, 1.0, "not comparable", "does not show: within noise"),
    ],
)
def test_words(paper: float, here: float | None, verdict: str, words: str) -> None:
    assert outcome(paper, here, verdict) == words
