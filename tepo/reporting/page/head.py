"""First lines of the page: what ran, and a sentence for each table with its figures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tepo.common.text import counted
from tepo.evaluation.statistics.comparison import AVERAGE
from tepo.evaluation.statistics.comparison_verdict import Verdict
from tepo.reporting.page.forest import baseline_of, compared
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.table import ONE_SEED, VERDICT, Block, Cell, Column, Kind, Table, TableRow

_FEW = 3  # rows that a sentence names
_DECIDED = (Verdict.BETTER, Verdict.WORSE, Verdict.EQUIVALENT)


@dataclass(frozen=True)
class Link:
    """A link to the page as others show it: where the page and its picture stand, title and text."""

    url: str
    picture: str
    title: str
    text: str


@dataclass(frozen=True)
class PageHead:
    """facts: what ran, name and value. notes: from the file of a study. sentences: the registered claims in Markdown,
    each beginning with a word in bold. scope: what results at this scale can say and what they cannot. link: None where
    it is not known where the page will stand."""

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    sentences: Sequence[str] = ()
    scope: str = ""
    link: Link | None = None


def finding(table: Table) -> str:
    """Finding of the table, in words and figures."""
    blocks = [block for block in table.blocks if compared(block)]
    if outcomes := " ".join(filter(None, map(_outcomes, blocks))):
        return outcomes
    if blocks:
        differing = [(_within(block, row), cell, word) for block in blocks for row, cell, word in compared(block)]
        parts = [
            _named(verdict, [(label, cell) for label, cell, word in differing if word == verdict])
            for verdict in (*_DECIDED, Verdict.ONE_SEED)
        ]
        rest = Counter(word for *_, word in differing if word not in (*_DECIDED, Verdict.ONE_SEED))
        parts += [f"{word}: {number}\u00a0of\u00a0{len(differing)}" for word, number in rest.items()]
        where = f", each of {len(blocks)} settings or models apart" if len(blocks) > 1 else ""
        caution = f" {ONE_SEED}" if any(word == Verdict.ONE_SEED for *_, word in differing) else ""
        return f"{_against(blocks[0])}{where}, in points: {'; '.join(filter(None, parts))}.{caution}"
    if table.comparisons or not any(column.key == AVERAGE for block in table.blocks for column in block.columns):
        return table.notes[0] if table.notes else ""
    measured = [
        (row, cell)
        for block in table.blocks
        for row in block.rows
        for column, cell in zip(block.columns, row.cells, strict=True)
        if row.measured and column.key == AVERAGE and cell.mean is not None
    ]
    if not measured:
        return "Nothing measured yet."
    row, cell = max(measured, key=lambda entry: entry[1].mean or 0.0)
    return f"Highest average of {counted(len(measured), 'row')}: {row.label}, {_figure(cell, Column('', ''))}."


def _against(block: Block) -> str:
    """Name of the row that the others are compared with, at any setting."""
    groups = [column.group for column in block.columns if column.key == VERDICT]
    return groups[0] or f"Against {baseline_of(block)}"


def _within(block: Block, row: TableRow) -> str:
    """The label, with the model or setting of its block where it does not name that."""
    part = block.title.partition(": ")[2]
    return f"{row.label} ({part})" if part and part not in row.label else row.label


def _outcomes(block: Block) -> str:
    """Outcomes of registered claims; empty for a block of other rows."""
    index = next((place for place, column in enumerate(block.columns) if column.key == "claim"), None)
    if index is None:
        return ""
    words = Counter(row.cells[index].text for row, *_ in compared(block))
    parts = (f"{number} {'hold' if word == 'holds' and number > 1 else word}" for word, number in words.items())
    return f"{counted(words.total(), 'claim')} measured: {', '.join(parts)}."


def _named(verdict: str, rows: Sequence[tuple[str, Cell]]) -> str:
    """`worse: A −2.6 [−3.8, −1.4], B …`, the largest differences first; those of one seed without a word."""
    column = Column("", "", Kind.DELTA)
    rows = sorted(rows, key=lambda pair: -abs(pair[1].mean or 0.0))
    names = [f"{label} {_figure(cell, column)}" for label, cell in rows]
    more = [f"and {len(names) - _FEW} more"] if len(names) > _FEW else []
    named = ", ".join([*names[:_FEW], *more])
    return named if verdict == Verdict.ONE_SEED or not names else f"{verdict}: {named}"


def _figure(cell: Cell, column: Column) -> str:
    """The value with its interval, which no line end divides."""
    text = f"{format_value(cell, column, 1)} {format_interval(cell, column, 1)}"
    return text.strip().replace(" ", "\u00a0")
