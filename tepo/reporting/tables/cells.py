"""Writing of cells: the value and the interval, plain or in the marks of a format."""

from collections.abc import Callable
from dataclasses import dataclass

from tepo.reporting.tables.table import Cell, Column, Kind, TableBlock, rounded


def format_value(cell: Cell, column: Column, decimals: int) -> str:
    """The mean as text: words, or a dash, when missing, a sign for a delta, a true minus sign."""
    if column.kind is Kind.TEXT:
        return cell.text or "–"
    if cell.mean is None:
        return cell.text or "–"
    return number_text(cell.mean, decimals, "+" if column.kind is Kind.DELTA else "")


def number_text(value: float, decimals: int, sign: str = "") -> str:
    """Digits with a true minus sign; what rounds to zero has no sign."""
    text = f"{rounded(value, decimals):{sign}.{decimals}f}"
    return (text if float(text) else text.lstrip("+-")).replace("-", "−")


def format_interval(cell: Cell, column: Column, decimals: int) -> str:
    """The interval as text: "±1.4" for a score, "[−0.3, 2.7]" for a delta, and for a score to which ± would add what is
    below 0 or above 100; empty without one."""
    if cell.low is None or cell.high is None:
        return ""
    half = (cell.high - cell.low) / 2
    within = cell.mean is not None and half <= cell.mean <= 100 - half
    if column.kind is Kind.DELTA or not within:
        return f"[{number_text(cell.low, decimals)}, {number_text(cell.high, decimals)}]"
    return f"±{number_text(half, decimals)}"


@dataclass(frozen=True)
class Markup:
    """Marks of a format. escape: plain text in it. best, second, interval: templates with one %s, for the first and the
    second of a column and for the interval behind a value."""

    escape: Callable[[str], str]
    best: str
    second: str
    interval: str

    def cell(self, cell: Cell, column: Column, decimals: int) -> str:
        """The value, marked by its rank, and the interval."""
        template = {1: self.best, 2: self.second}.get(cell.rank, "%s")
        interval = format_interval(cell, column, decimals)
        text = template % self.escape(format_value(cell, column, decimals))
        return text + (self.interval % self.escape(interval) if interval else "")

    def rows(self, block: TableBlock) -> list[list[str]]:
        """The label and the cells of each row, written."""
        return [
            [
                self.escape(row.label),
                *(self.cell(*pair, block.decimals) for pair in zip(row.cells, block.columns, strict=True)),
            ]
            for row in block.rows
        ]
