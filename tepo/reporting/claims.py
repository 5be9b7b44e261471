"""The papers' comparisons beside ours: for each row that a study compares with its baseline, the printed difference,
the measured one, and whether it shows."""

from collections.abc import Sequence

from tepo.evaluation.comparison import AVERAGE
from tepo.reporting.table import MISSING, Block, Cell, Column, Kind, Row, Table

_COLUMNS = (
    Column("paper", "Δ Avg., paper", Kind.DELTA),
    Column("here", "Δ Avg., here", Kind.DELTA),
    Column("verdict", "Here", Kind.TEXT),
)


def claims_table(tables: Sequence[Table]) -> Table:
    """One row for each compared row of each table that the paper printed too; a section for each table."""
    rows = [row for table in tables for row in _rows(table)]
    shows = sum(row.cells[2].text == "shows" for row in rows)
    note = (
        f"{shows} of {len(rows)} differences of the papers show here: "
        "same sign, and beyond noise after Holm's correction over their table."
    )
    block = Block("The papers' differences to the baseline of their table, and ours", _COLUMNS, tuple(rows), decimals=2)
    caution = (
        "Other models on other problems: "
        "a difference that does not show here is not refuted, one that shows is not confirmed."
    )
    return Table("claims", "What of the papers' comparisons shows at this scale", (block,), (note, caution))


def _rows(table: Table) -> list[Row]:
    measured = [block for block in table.blocks if any(column.key == "delta" for column in block.columns)]
    printed = {
        row.key: _cell(block, row, AVERAGE).mean
        for block in table.blocks
        if block not in measured
        for row in block.rows
    }
    found = []
    for block in measured:
        baseline = next((row for row in block.rows if _cell(block, row, "verdict").text == "baseline"), None)
        base = printed.get(baseline.key) if baseline else None
        for row in block.rows:
            average = printed.get(row.key)
            if baseline is None or row is baseline or base is None or average is None:
                continue
            delta, text = _cell(block, row, "delta"), _cell(block, row, "verdict").text
            cells = (Cell(average - base), delta, Cell(text=outcome(average - base, delta.mean, text)))
            found.append(
                Row(
                    f"{table.name}/{row.key}",
                    f"{row.label} against {baseline.label}",
                    cells,
                    row.method,
                    table.title,
                    row.look,
                )
            )
    return found


def outcome(paper: float, here: float | None, verdict: str) -> str:
    """Words for a printed and a measured difference; `verdict` is the table's own on the measured one."""
    if here is None:
        return "not measured"
    if verdict not in ("better", "worse"):
        return "does not show: within noise"
    return "shows" if (here > 0) == (paper > 0) else f"opposite: {verdict}"


def _cell(block: Block, row: Row, key: str) -> Cell:
    return next((cell for cell, column in zip(row.cells, block.columns, strict=True) if column.key == key), MISSING)
