"""Tables as tidy CSV for other programs: one line per cell, unrounded, with interval and sample count."""

import csv
import io
import re

from tepo.common.text import spelt
from tepo.reporting.tables.table import Table

_FORMULA, _NUMBER = re.compile(r"[=+\-@＝＋－＠\t\n]"), re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.IGNORECASE)
HEADER = ("block", "section", "row", "label", "column", "title", "value", "low", "high", "n", "text")


def render(table: Table) -> str:
    """Lines under HEADER. value, low, high: percent or points; empty where nothing was measured.

    A text that a spreadsheet would take for a formula has an apostrophe before it, as OWASP recommends."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    for block in table.blocks:
        for row in block.rows:
            for column, cell in zip(block.columns, row.cells, strict=True):
                numbers = ("" if value is None else f"{value:.6g}" for value in (cell.mean, cell.low, cell.high))
                texts = block.title, row.section, row.key, row.label, column.key, column.title
                writer.writerow((*map(_quoted, texts), *numbers, cell.n or "", _quoted(cell.text)))
    return out.getvalue()


def _quoted(text: str) -> str:
    text = spelt(text)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
