from dataclasses import replace

import pytest

from tepo.evaluation.statistics.verdict import DeltaVerdict
from tepo.reporting.headline import headline
from tepo.reporting.tables.table import BASELINE, VERDICT, Cell, Column, Kind, Table, TableBlock, TableRow

AVERAGES = Column("average", "Avg.")


def compared(*rows: tuple[str, float, str], parts: tuple[str, ...] = ("",)) -> Table:
    """Rows beside one that is called plain, the same in a block of each part."""
    columns = (AVERAGES, Column("delta", "Δ", Kind.DELTA), Column(VERDICT, "Verdict", Kind.TEXT))
    base = TableRow("plain", "plain", (Cell(50.0), Cell(), Cell(text=BASELINE)))
    lines = [TableRow(name, name, (Cell(50.0 + delta), Cell(delta), Cell(text=word))) for name, delta, word in rows]
    blocks = (TableBlock("Measured", columns, (base, *lines), part=part, baseline="plain") for part in parts)
    return Table("mine", "Mine", tuple(blocks), ("note.",))


def sweep(scores: dict[str, tuple[float | None, ...]]) -> Table:
    """Averages at three learning rates."""
    rates = ("1e-4", "4e-4", "1e-3")
    rows = tuple(TableRow(name, name, tuple(map(Cell, means))) for name, means in scores.items())
    grid = TableBlock("Average accuracy by rate", tuple(Column(f"rate={one}", one) for one in rates), rows, axis="rate")
    return Table("mine", "Mine", (grid,))


def claims(*outcomes: str) -> Table:
    column = Column("claim", "The claim", Kind.TEXT)
    rows = tuple(TableRow(str(n), str(n), (Cell(text=text),)) for n, text in enumerate(outcomes))
    return Table("registered", "Claims", (TableBlock("Claims", (column,), rows),))


def scored(*means: float | None) -> Table:
    rows = tuple(TableRow(str(n), f"row {n}", (Cell(mean),), measured=("x",)) for n, mean in enumerate(means))
    return Table("mine", "Mine", (TableBlock("Measured", (AVERAGES,), rows),))


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
    "claims before their runs": (claims("", ""), "2 registered claims, none of them measured yet"),
    "rows below": (
        compared(("a", -3.0, "worse (p = .01)"), ("b", -1.0, "worse"), ("c", 0.1, "not decided (p = .9)")),
        "a and b score below plain, none above; 1 not decided",
    ),
    "labels with commas": (
        compared(("a, wide", -1.0, "worse"), ("b", -2.0, "worse")), '"a, wide" and b score below plain',
    ),
    "many below, some above": (
        compared(*((name, -1.0, "worse") for name in "abcd"), ("e", 2.0, "better"), ("f", 0.0, "not decided")),
        "e scores above plain, 4 of 6 rows score below; 1 not decided",
    ),
    "none decided": (
        compared(("a", 1.0, "not decided"), ("b", 2.0, "not decided")), "a and b cannot be told apart from plain",
    ),
    "many, none decided": (
        compared(*((name, 1.0, "not decided") for name in "abcd")), "None of 4 rows can be told apart from plain",
    ),
    "marks of tables": (compared(("a †", -1.0, "worse"), ("b ≡", -2.0, "worse")), "a and b score below plain"),
    "one row, not decided": (compared(("a", 1.0, "not decided")), "a cannot be told apart from plain"),
    "one seed": (
        compared(("a", -4.0, "1 seed: no verdict"), ("b", 0.4, "2 seeds: no verdict")),
        "Fewer than 3 seeds decide nothing: 2 rows lie −4.0 to +0.4 points from plain",
    ),
    "one seed beside three": (
        compared(("a", -4.0, "1 seed: no verdict"), ("b", 0.4, "not decided (p = .9)"), ("c", 0.4, "not decided")),
        "b and c cannot be told apart from plain; 1 without a verdict",
    ),
    "one seed beside what is decided": (
        compared(("a", -4.0, "2 seeds: no verdict"), ("b", 0.4, "better (p = .01)"), ("c", 0.4, "not decided")),
        "b scores above plain; 1 not decided; 1 without a verdict",
    ),
    "too few problems": (
        compared(("a", -4.0, str(DeltaVerdict.NOT_COMPARABLE))), "No verdict: a lies −4.0 points from plain",
    ),
    "a row that is another one does not count": (
        compared(("a", -1.0, "worse"), ("b", 0.0, "identical here")), "a scores below plain",
    ),
    "settings": (
        compared(("a", -1.0, "worse"), parts=("rate=1", "rate=2")),
        "a (rate=1) and a (rate=2) score below plain (separately for 2 settings)",
    ),
    "bases": (
        drawn((-3.0, "worse (p = .01)"), (-1.0, "not decided (p = .06)"), (-2.0, "worse (p = .03)")),
        "On average over such bases: row 0 and row 2 score below plain, none above; 1 not decided",
    ),
    "a sweep, whose rows are compared with nothing": (sweep({"a": (70.0, 30.0, 0.5)}), ""),
    "a study without a baseline": (scored(10.0, None, 70.0), ""),
    "another table": (replace(compared(), blocks=()), "note"),
}  # fmt: skip


BESIDE = compared(("a", -3.0, "worse (p = .01)"), ("b", 0.1, "not decided"))
OWN = {
    "better": (("mine", 2.0, "better"), "mine scores above plain; a scores below it; 1 not decided"),
    "worse": (("mine", -2.0, "worse"), "mine scores below plain; a scores below it; 1 not decided"),
    "undecided": (
        ("mine", 0.5, "not decided"),
        "mine cannot be told apart from plain; a scores below it; 1 not decided",
    ),
    "of one seed": (
        ("mine", 0.5, "1 seed: no verdict"),
        "Fewer than 3 seeds decide nothing: mine lies +0.5 points from plain; a scores below it; 1 not decided",
    ),
}


@pytest.mark.parametrize("case", OWN)
def test_a_row_of_ones_own_comes_first_of_all_tables(case: str) -> None:
    row, sentence = OWN[case]
    assert headline(BESIDE, compared(row), own={"mine"}) == headline(compared(row), BESIDE, own={"mine"}) == sentence


def test_several_tables_have_one_sentence() -> None:
    other = compared(("c", 1.0, "better"), ("b", 0.1, "not decided"))
    assert headline(BESIDE, other) == "c scores above plain, a scores below; 1 not decided", "a row counts once"
    theirs = replace(other, blocks=(replace(other.blocks[0], baseline="GSPO"),))
    assert headline(BESIDE, theirs) == "c scores above their baseline, a scores below; 1 not decided"
    assert (
        headline(claims("holds"), BESIDE)
        == "Of 1 registered claim 1 holds; a scores below plain, none above; 1 not decided"
    )
    open_tables = [compared((name, 0.1, "not decided")) for name in ("b", "mine")]
    assert headline(*open_tables, own={"mine"}) == "mine cannot be told apart from plain, nor can b"
    one_seed = compared(("b", -1.0, "1 seed: no verdict"))
    assert headline(compared(("mine", 2.0, "1 seed: no verdict")), one_seed, own={"mine"}) == (
        "Fewer than 3 seeds decide nothing: mine lies +2.0 points from plain and b −1.0"
    )
    assert headline(compared(("mine", 2.0, "better")), one_seed, own={"mine"}) == (
        "mine scores above plain; fewer than 3 seeds decide nothing: b lies −1.0 points from it"
    )


@pytest.mark.parametrize("case", CASES)
def test_the_finding_in_a_sentence(case: str) -> None:
    table, sentence = CASES[case]
    assert headline(table) == sentence
