import pytest

from tepo.reporting.headline import headline
from tepo.reporting.tables.table import BASELINE, VERDICT, Cell, Column, Kind, Table, TableBlock, TableRow

AVERAGES = Column("average", "Avg.")


def compared(*rows: tuple[str, float, str]) -> Table:
    """Rows beside one that is called plain."""
    columns = (AVERAGES, Column("delta", "Δ", Kind.DELTA), Column(VERDICT, "Verdict", Kind.TEXT))
    base = TableRow("plain", "plain", (Cell(50.0), Cell(), Cell(text=BASELINE)))
    lines = [TableRow(name, name, (Cell(50.0 + delta), Cell(delta), Cell(text=word))) for name, delta, word in rows]
    return Table("mine", "Mine", (TableBlock("Measured", columns, (base, *lines), baseline="plain"),))


def claims(*outcomes: str) -> Table:
    column = Column("claim", "The claim", Kind.TEXT)
    rows = tuple(TableRow(str(n), str(n), (Cell(text=text),)) for n, text in enumerate(outcomes))
    return Table("registered", "Claims", (TableBlock("Claims", (column,), rows),))


def drawn(*rows: tuple[float | None, str]) -> Table:
    """Differences to one that is called plain with an interval that leaves out 0, before verdicts on each base."""
    columns = (Column("delta", "Δ, on average", Kind.DELTA), Column(VERDICT, "Verdict", Kind.TEXT))
    cells = [
        (Cell() if delta is None else Cell(delta, delta - 0.1, delta + 0.1), Cell(text=word)) for delta, word in rows
    ]
    lines = tuple(TableRow(f"row {number}", f"row {number}", pair) for number, pair in enumerate(cells))
    block = TableBlock("Against plain", columns, lines, baseline="plain", drawn="base")
    return Table("mine", "Mine", (block, *compared(("row 0", -1.0, "worse")).blocks))


CASES = {
    "claims of three outcomes": (
        claims("holds", "refuted", "holds", "undecided", ""),
        "Of 4 registered claims 2 hold, 1 is refuted and 1 is undecided",
    ),
    "rows below": (
        compared(("a", -3.0, "worse (p = .01)"), ("b", -1.0, "worse"), ("c", 0.1, "not decided (p = .9)")),
        "a and b score below plain, none above; 1 not decided",
    ),
    "one seed": (
        compared(("a", -4.0, "1 seed: no verdict"), ("b", 0.4, "2 seeds: no verdict")),
        "Fewer than 3 seeds decide nothing: 2 rows lie −4.0 to +0.4 points from plain",
    ),
    "a row that is another one does not count": (
        compared(("a", -1.0, "worse"), ("b", 0.0, "identical here")), "a scores below plain",
    ),
    "bases": (
        drawn((-3.0, "worse (p = .01)"), (-1.0, "not decided (p = .06)"), (-2.0, "worse (p = .03)")),
        "On average over such bases: row 0 and row 2 score below plain, none above; 1 not decided",
    ),
}  # fmt: skip


BESIDE = compared(("a", -3.0, "worse (p = .01)"), ("b", 0.1, "not decided"))


def test_a_row_of_ones_own_comes_first_of_all_tables() -> None:
    own, sentence = compared(("mine", 2.0, "better")), "mine scores above plain; a scores below it; 1 not decided"
    assert headline(BESIDE, own, own={"mine"}) == headline(own, BESIDE, own={"mine"}) == sentence


@pytest.mark.parametrize("case", CASES)
def test_the_finding_in_a_sentence(case: str) -> None:
    table, sentence = CASES[case]
    assert headline(table) == sentence
