"""The forest plot of a table: each row's difference to its baseline with its interval, and the paper's printed one.

Positions are shares of the plot's width in percent, so that the page can draw it at any width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tepo.evaluation.statistics.comparison_verdict import Verdict
from tepo.reporting.colours import UNTRAINED
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.renderers.html_table import swatch
from tepo.reporting.tables.table import (
    BASELINE,
    IDENTICAL,
    VERDICT,
    Block,
    Cell,
    Column,
    Kind,
    Table,
    TableRow,
    verdict_in,
)

_DELTA = "delta"
_COLUMN = Column(_DELTA, "", Kind.DELTA)
_OUTCOME = "claim"  # of a registered claim: holds, refuted, undecided
_MARKS: dict[str, str] = {
    Verdict.BETTER: "better",
    Verdict.WORSE: "worse",
    Verdict.EQUIVALENT: "equivalent",
    Verdict.NOT_DECIDED: "noise",
    Verdict.UNDECIDED: "noise",
    Verdict.ONE_SEED: "noise",
    IDENTICAL: "noise",
}
_REACH = 8  # the scale ends at this many times the middle of all ends: one collapsed run must not flatten the others
_A_TO_B = "A − B, in points of accuracy or hundredths of a nat of entropy"  # of registered claims
_INTERVALS = 4  # of the scale, about


@dataclass(frozen=True)
class Line:
    """One row. at, low, high, paper: positions; paper None where the paper has no such difference. mark: the shape of
    the verdict. beyond, paper_beyond: the sides on which the interval and the paper's difference leave the scale."""

    label: str
    swatch: str
    verdict: str
    mark: str
    text: str
    interval: str
    printed: str
    at: float
    low: float
    high: float
    paper: float | None
    beyond: tuple[str, ...]
    paper_beyond: tuple[str, ...]


@dataclass(frozen=True)
class Forest:
    """The comparisons of a block. ticks: position and text. zero: the position of no difference."""

    table: Table
    title: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]
    zero: float

    @property
    def printed(self) -> bool:
        """True where the paper has any of these differences."""
        return any(line.printed for line in self.lines)


def forests(table: Table) -> list[Forest]:
    """One for each block whose rows are compared and measured; a block of one comparison too."""
    paper = {one.row.key: one.paper for one in table.comparisons if one.paper is not None}
    return [one for block in table.blocks if (one := _forest(table, block, paper))]


def compared(block: Block) -> list[tuple[TableRow, Cell, str]]:
    """The rows of a block with their measured difference and verdict; empty where it compares none."""
    index = {column.key: place for place, column in enumerate(block.columns)}
    if _DELTA not in index or VERDICT not in index:
        return []
    rows = [(row, row.cells[index[_DELTA]], verdict_in(row.cells[index[VERDICT]].text)) for row in block.rows]
    return [(row, cell, verdict) for row, cell, verdict in rows if cell.mean is not None]


def baseline_of(block: Block) -> str:
    """The label of the row that the others are compared with."""
    index = next(place for place, column in enumerate(block.columns) if column.key == VERDICT)
    return next((block.label(row) for row in block.rows if row.cells[index].text == BASELINE), "")


def _forest(table: Table, block: Block, paper: Mapping[str, float]) -> Forest | None:
    rows = compared(block)
    if not rows:
        return None
    scale = _Scale.over(rows, paper)
    known = {row.key for row, _, verdict in rows if verdict in list(Verdict)}
    long = {one.row.key: one.long_words for one in table.comparisons if one.row.key in known}
    outcome = next((place for place, column in enumerate(block.columns) if column.key == _OUTCOME), None)
    lines = []
    for row, cell, verdict in rows:
        said = row.cells[outcome].text if outcome is not None else long.get(row.key, verdict)
        word = said if outcome is None or verdict in ("", said) else f"{said} ({verdict})"
        words = (_MARKS.get(verdict, "none"), word)
        lines.append(_line(replace(row, label=block.label(row)), cell, words, paper.get(row.key), scale))
    against = baseline_of(block)
    part = block.title.removeprefix("Measured").removeprefix(": ") if against else ""
    compared_with = f"difference of the average to {against}, in points" if against else _A_TO_B
    title = ": ".join(filter(None, (table.title, part, compared_with)))
    ticks = tuple((scale.position(value), (f"{value:+g}" if value else "0").replace("-", "−")) for value in scale.ticks)
    return Forest(table, title, tuple(lines), ticks, scale.position(0.0))


def _line(row: TableRow, cell: Cell, words: tuple[str, str], paper: float | None, scale: "_Scale") -> Line:
    """words: the mark of the verdict, and what is said of it."""
    assert cell.mean is not None
    low, high = (cell.mean if end is None else end for end in (cell.low, cell.high))
    return Line(
        label=row.sentence or row.label,
        swatch=swatch(row.look, row.method),
        mark=words[0],
        verdict=words[1],
        text=format_value(cell, _COLUMN, 1),
        interval=format_interval(cell, _COLUMN, 1),
        printed="" if paper is None else format_value(Cell(paper), _COLUMN, 2),
        at=scale.position(cell.mean),
        low=scale.position(low),
        high=scale.position(high),
        paper=None if paper is None else scale.position(paper),
        beyond=scale.beyond(low, high),
        paper_beyond=() if paper is None else scale.beyond(paper, paper),
    )


@dataclass(frozen=True)
class _Scale:
    """ticks: rising, the first and last are the ends."""

    ticks: tuple[float, ...]

    @classmethod
    def over(cls, rows: Sequence[tuple[TableRow, Cell, str]], paper: Mapping[str, float]) -> "_Scale":
        """Scale from the smallest to the largest end, 0 always within; the untrained model may lie beyond it."""
        rows = [entry for entry in rows if entry[0].method != UNTRAINED] or rows
        known = [value for _, cell, _ in rows for value in (cell.low, cell.mean, cell.high) if value is not None]
        sizes = sorted(map(abs, known))
        reach = _REACH * sizes[len(sizes) // 2] or 1.0
        values = [0.0, *known, *(paper[row.key] for row, _, _ in rows if row.key in paper)]
        values = [min(max(value, -reach), reach) for value in values]
        # The next of 1, 2, 5 times a power of ten
        size = max(max(values) - min(values), 0.1) / _INTERVALS
        power = 10.0 ** math.floor(math.log10(size))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= size * (1 - 1e-9))
        first, last = math.floor(min(values) / step), math.ceil(max(values) / step)
        return cls(tuple(step * number for number in range(first, max(last, first + 1) + 1)))

    def position(self, value: float) -> float:
        """Percent of the width, within its margins."""
        low, high = self.ticks[0], self.ticks[-1]
        return round(4 + 92 * (min(max(value, low), high) - low) / (high - low), 2)

    def beyond(self, low: float, high: float) -> tuple[str, ...]:
        ends = ((low < self.ticks[0], "left"), (high > self.ticks[-1], "right"))
        return tuple(side for outside, side in ends if outside)
