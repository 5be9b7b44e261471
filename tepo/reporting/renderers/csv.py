"""Tables as tidy CSV for other programs: one line per cell, unrounded, with interval and sample count."""

import csv
import io

from tepo.reporting.table import Table

HEADER = ("block", "section", "row", "label", "column", "title", "value", "low", "high", "n", "text")


def render(table: Table) -> str:
    """Lines under HEADER. value, low, high: percent or points; empty where nothing was measured."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    for block in table.blocks:
        for row in block.rows:
            for column, cell in zip(block.columns, row.cells, strict=True):
                numbers = ("" if value is None else f"{value:.6g}" for value in (cell.mean, cell.low, cell.high))
                writer.writerow(
                    (
                        block.title,
                        row.section,
                        row.key,
                        row.label,
                        column.key,
                        column.title,
                        *numbers,
                        cell.n or "",
                        cell.text,
                    )
                )
    return out.getvalue()
