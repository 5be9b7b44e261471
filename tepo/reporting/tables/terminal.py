"""Tables in the terminal: the mean on one line, its interval dimmed below, or beside it where one column alone has
intervals; a block too wide for the screen is cut into parts."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from tepo.common.text import spelt
from tepo.evaluation.statistics.samples import AVERAGE
from tepo.evaluation.statistics.verdict import DeltaVerdict
from tepo.reporting.progress import Screen
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.table import Cell, Column, Kind, Table, TableBlock, verdict_in

_STYLE = {1: "bold", 2: "underline"}
_VERDICT: dict[str, str] = {DeltaVerdict.BETTER: "green", DeltaVerdict.WORSE: "red"}
_LABEL_WIDTH = 20
_CONTINUED = " (continued)"


def render(table: Table) -> RenderableType:
    """Blocks one below the other, then the notes."""
    parts: list[RenderableType] = [Text(table.title, style="bold"), Text()]
    for block in table.blocks:
        columns = tuple(replace(column, title=spelt(column.title)) for column in block.columns)
        rows = tuple(
            replace(
                row,
                label=spelt(row.label),
                cells=tuple(replace(cell, text=spelt(cell.text)) if cell.text else cell for cell in row.cells),
            )
            for row in block.rows
        )
        parts += [_Fitted(replace(block, columns=columns, rows=rows)), *(_note(note) for note in block.notes), Text()]
    return Group(*parts, *(_note(note) for note in table.notes))


def plain(table: Table, width: int) -> str:
    """The same without colour, `width` characters wide."""
    out = io.StringIO()
    Screen(file=out, width=width, color_system=None, force_terminal=False).print(render(table))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


@dataclass(frozen=True)
class _Fitted:
    """A block; where it is too wide for the screen in parts, the first of which has the averages."""

    block: TableBlock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def fits(columns: Sequence[int], label: int) -> bool:
            grid = _grid(self.block.with_columns(columns), label)
            return Measurement.get(console, options.update(width=10_000), grid).minimum <= options.max_width

        every = range(len(self.block.columns))
        if fits(every, _LABEL_WIDTH):
            yield _grid(self.block, _LABEL_WIDTH)
            return
        first = next((index for index, column in enumerate(self.block.columns) if column.key == AVERAGE), 0)
        places, title = [*range(first, len(self.block.columns)), *range(first)], self.block.title
        longest = _longest(self.block)
        label = longest if fits(places[:1], longest) else _LABEL_WIDTH  # beside the averages it stays on one line
        while places:
            count = next((size for size in range(len(places), 1, -1) if fits(places[:size], label)), 1)
            yield _grid(replace(self.block.with_columns(places[:count]), title=title), label)
            places, label, title = places[count:], _LABEL_WIDTH, self.block.title + _CONTINUED


def _longest(block: TableBlock) -> int:
    return max((cell_len(row.label) for row in block.rows), default=0)


def _note(text: str) -> RenderableType:
    return Padding(Text(text, style="dim"), (0, 0, 0, 1))


def _cell(cell: Cell, column: Column, decimals: int, between: str) -> Text:
    """between: what stands between a value and its interval."""
    value = format_value(cell, column, decimals)
    text = Text().append(
        value, style=_VERDICT.get(verdict_in(value), "") if column.kind is Kind.TEXT else _STYLE.get(cell.rank, "")
    )
    if interval := format_interval(cell, column, decimals):
        text.append(between + interval, style="dim")
    return text


def _grid(block: TableBlock, label: int) -> Grid:
    """label: columns of the screen for the labels, at least."""
    grid = Grid(
        title=block.title, title_justify="left", title_style="italic", header_style="", pad_edge=False, box=None
    )
    # where it need not wrap rich must not narrow it: it would cut the last column
    word = max((cell_len(word) for row in block.rows for word in row.label.split()), default=0)
    grid.add_column("", min_width=max(label, word), no_wrap=label >= _longest(block))
    wide = {
        column.key
        for row in block.rows
        for cell, column in zip(row.cells, block.columns, strict=True)
        if format_interval(cell, column, block.decimals)
    }
    between = "\n" if len(wide) > 1 else " "  # there is room for the intervals of one column
    cells = [
        [_cell(cell, column, block.decimals, between) for cell, column in zip(row.cells, block.columns, strict=True)]
        for row in block.rows
    ]
    for index, column in enumerate(block.columns):
        texts = [column.title, *(line[index].plain for line in cells)]
        lines = [part for text in texts for part in text.splitlines()]
        prose = column.kind is Kind.TEXT and max(map(cell_len, lines)) > _LABEL_WIDTH
        parts = [word for line in lines for word in line.split()] if prose else lines
        grid.add_column(
            column.title,
            justify="left" if column.kind is Kind.TEXT else "right",
            no_wrap=not prose,
            min_width=max(map(cell_len, parts), default=0),  # no number and no word is cut
        )
    for row, line in zip(block.rows, cells, strict=True):
        grid.add_row(Text(row.label), *line)
    return grid
