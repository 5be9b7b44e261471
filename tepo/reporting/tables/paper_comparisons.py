"""The papers' comparisons beside ours: for each row that a study compares with its baseline, the printed difference,
the measured one, and whether it shows."""

import math
from collections.abc import Sequence

from tepo.evaluation.statistics.comparison import Difference
from tepo.evaluation.statistics.comparison_verdict import FEWEST_SEEDS, DeltaVerdict
from tepo.reporting.tables.table import Cell, Column, Kind, RowComparison, Table, TableBlock, TableRow

_COLUMNS = (
    Column("paper", "Δ Avg., paper", Kind.DELTA),
    Column("here", "Δ Avg., here", Kind.DELTA),
    Column("verdict", "Here", Kind.TEXT),
)
_DECIDED = (DeltaVerdict.BETTER, DeltaVerdict.WORSE)


def paper_comparisons(tables: Sequence[Table]) -> Table:
    """One row for each compared row of each table that the paper printed too; a section for each table."""
    printed = [(table, one, one.paper) for table in tables for one in table.comparisons if one.paper is not None]
    rows = [
        TableRow(
            f"{table.name}/{one.row.key}",
            f"{one.row.label} against {one.baseline.label}",
            (Cell(paper), one.cell, Cell(text=outcome(one))),
            one.row.method,
            table.title,
            one.row.look,
        )
        for table, one, paper in printed
    ]
    shown = sum(shows(paper, one.measured) for _, one, paper in printed)
    lacking = sum(one.measured is None for _, one, _ in printed)
    alone = sum(one.measured is not None and one.measured.verdict is DeltaVerdict.NO_VERDICT for _, one, _ in printed)
    note = (
        f"{shown} of {len(rows)} differences of the papers show here: same sign, and better or worse as in the table "
        "of its study"
        + (f"; {lacking} not measured" if lacking else "")
        + (f"; {alone} of fewer than {FEWEST_SEEDS} seeds, so without a verdict" if alone else "")
    )
    title = "The papers' differences to the baseline of their table, and ours"
    caution = (
        "Other models on other problems: "
        "a difference that does not show here is not refuted, one that shows is not confirmed."
    )
    block = TableBlock(title, _COLUMNS, tuple(rows), decimals=2)
    return Table("claims", "What of the papers' comparisons shows at this scale", (block,), (f"{note}.", caution))


def shows(paper: float, here: Difference | None) -> bool:
    """Tell whether a measured difference is decided and has the sign of the printed one."""
    return here is not None and here.verdict in _DECIDED and (here.delta > 0) == (paper > 0)


def outcome(one: RowComparison) -> str:
    """Words for a printed and a measured difference, with the verdict of its table."""
    assert one.paper is not None
    if one.measured is None or math.isnan(one.measured.delta):
        return "not measured"
    if one.measured.verdict is DeltaVerdict.NO_VERDICT:
        return one.words
    if one.measured.verdict not in _DECIDED:
        return f"does not show: {one.words}"
    return f"{'shows' if shows(one.paper, one.measured) else 'opposite'}: {one.words}"
