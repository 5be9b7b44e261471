"""Tables in the terminal: the mean on one line, its interval dimmed below; a block too wide for the screen is cut into
parts."""

import io
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from tepo.evaluation.comparison import Verdict
from tepo.reporting.table import Block, Cell, Column, Kind, Table, format_interval, format_value, sections

_STYLE = {1: "bold", 2: "underline"}
_VERDICT: dict[str, str] = {Verdict.BETTER: "green", Verdict.WORSE: "red"}
_LABEL_WIDTH = 20
_CONTINUED = " (continued)"


def render(table: Table) -> RenderableType:
    """Blocks one below the other, then the notes."""
    parts: list[RenderableType] = [Text(table.title, style="bold"), Text()]
    for block in table.blocks:
        parts += [_Fitted(block), *(_note(note) for note in block.notes), Text()]
    return Group(*parts, *(_note(note) for note in table.notes))


def plain(table: Table, width: int) -> str:
    """The same without colour, `width` characters wide."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, force_terminal=False).print(render(table))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


@dataclass(frozen=True)
class _Fitted:
    """A block, halved by columns until each part fits the screen."""

    block: Block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid = _grid(self.block)
        count = len(self.block.columns)
        if count == 1 or Measurement.get(console, options.update(width=10_000), grid).minimum <= options.max_width:
            yield grid
            return
        title = self.block.title.removesuffix(_CONTINUED)
        for part, name in (
            (slice(0, (count + 1) // 2), self.block.title),
            (slice((count + 1) // 2, count), title + _CONTINUED),
        ):
            rows = tuple(replace(row, cells=row.cells[part]) for row in self.block.rows)
            yield _Fitted(replace(self.block, title=name, columns=self.block.columns[part], rows=rows))


def _note(text: str) -> RenderableType:
    return Padding(Text(text, style="dim"), (0, 0, 0, 1))


def _cell(cell: Cell, column: Column, decimals: int) -> Text:
    value = format_value(cell, column, decimals)
    text = Text().append(
        value, style=_VERDICT.get(value, "") if column.kind is Kind.TEXT else _STYLE.get(cell.rank, "")
    )
    if interval := format_interval(cell, column, decimals):
        text.append("\n" + interval, style="dim")
    return text


def _grid(block: Block) -> Grid:
    grid = Grid(
        title=block.title, title_justify="left", title_style="italic", header_style="", pad_edge=False, box=None
    )
    grid.add_column("", min_width=_LABEL_WIDTH)
    cells = [
        [_cell(cell, column, block.decimals) for cell, column in zip(row.cells, block.columns, strict=True)]
        for row in block.rows
    ]
    for index, column in enumerate(block.columns):
        text = column.kind is Kind.TEXT
        parts = [
            part
            for cell in (Text(column.title), *(line[index] for line in cells))
            for part in (cell.plain.split() if text else cell.plain.splitlines())
        ]
        grid.add_column(
            column.title,
            justify="left" if text else "right",
            no_wrap=not text,
            min_width=max(map(cell_len, parts), default=0),  # no number and no word is cut
        )
    lines = iter(cells)
    for section, rows in sections(block.rows):
        if section:
            grid.add_row(Text(section, style="italic"))
        for row in rows:
            grid.add_row(Text(row.label), *next(lines))
    return grid
