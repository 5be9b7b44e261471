"""The papers' comparisons beside ours: for each row that a study compares with its baseline, the printed difference,
the measured one, and whether it shows."""

import math
from collections.abc import Sequence

from tepo.evaluation.statistics.comparison import Difference
from tepo.evaluation.statistics.comparison_verdict import Verdict
from tepo.reporting.tables.table import Block, Cell, Column, Kind, Table, TableRow

_COLUMNS = (
    Column("paper", "Δ Avg., paper", Kind.DELTA),
    Column("here", "Δ Avg., here", Kind.DELTA),
    Column("verdict", "Here", Kind.TEXT),
)
_BEYOND_NOISE = (Verdict.BETTER, Verdict.WORSE)


def paper_comparisons(tables: Sequence[Table]) -> Table:
    """One row for each compared row of each table that the paper printed too; a section for each table."""
    rows, shown = [], 0
    for table in tables:
        for one in table.comparisons:
            if one.paper is not None:
                shown += shows(one.paper, one.measured)
                key, label = f"{table.name}/{one.row.key}", f"{one.row.label} against {one.baseline.label}"
                cells = (Cell(one.paper), one.cell, Cell(text=outcome(one.paper, one.measured)))
                rows.append(TableRow(key, label, cells, one.row.method, table.title, one.row.look))
    note = (
        f"{shown} of {len(rows)} differences of the papers show here: "
        "same sign, and beyond noise after Holm's correction over all comparisons of these tables."
    )
    block = Block("The papers' differences to the baseline of their table, and ours", _COLUMNS, tuple(rows), decimals=2)
    caution = (
        "Other models on other problems: "
        "a difference that does not show here is not refuted, one that shows is not confirmed."
    )
    return Table("claims", "What of the papers' comparisons shows at this scale", (block,), (note, caution))


def shows(paper: float, here: Difference | None) -> bool:
    """Tell whether a measured difference is beyond noise and has the sign of the printed one."""
    return here is not None and here.verdict in _BEYOND_NOISE and (here.delta > 0) == (paper > 0)


def outcome(paper: float, here: Difference | None) -> str:
    """Words for a printed and a measured difference."""
    if here is None or math.isnan(here.delta):
        return "not measured"
    if here.verdict not in _BEYOND_NOISE:
        return f"does not show: {Verdict.WITHIN_NOISE}"
    return "shows" if shows(paper, here) else f"opposite: {here.verdict}"
