"""Tables as an HTML fragment: semantic, readable without scripts, which only copy it."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby

from tepo.common.text import counted
from tepo.reporting.colours import Look, look
from tepo.reporting.tables.cells import Markup
from tepo.reporting.tables.table import BASELINE, SAME, VERDICT, Block, Cell, Kind, Table, TableRow, sections

_MARKUP = Markup(escape, "<b>%s</b>", "<u>%s</u>", " <small>%s</small>")
_WIDE = 13  # columns that an upright sheet of A4 has room for


def swatch(own: Look | None, method: str) -> str:
    """A piece of the row's line as its curves draw it: the same colour and dash. Empty for what has none."""
    if own is None and not method:
        return ""
    style = own or look(method)
    dash = f' stroke-dasharray="{" ".join(f"{2 * part:g}" for part in style.dash)}"' if style.dash else ""
    return (
        '<svg class="swatch" width="36" height="8" aria-hidden="true">'
        f'<path d="M0 4h36" stroke="{style.colour}" stroke-width="2.5"{dash}/></svg>'
    )


def render(table: Table) -> str:
    """The table under its title."""
    name, wide = escape(table.name), " wide" if is_wide(table) else ""
    head = f'<section class="result{wide}" id="table-{name}"><h2>{escape(table.title)}</h2>'
    return f"{head}{body(table)}</section>\n"


def body(table: Table, runs: Collection[str] = ()) -> str:
    """Blocks and notes. runs: ids of runs that the page has an entry of; a row links to its first."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    blocks = "".join(_Markup(table, _verdict_first(block), runs).text() for block in table.blocks)
    return f'{blocks}{_to_fill(table)}<ul class="notes">{notes}</ul>'


def _verdict_first(block: Block) -> Block:
    """The block with what is compared before the benchmarks: on a narrow screen the last columns lie out of sight."""
    order = sorted(range(len(block.columns)), key=lambda index: block.columns[index].key not in ("delta", VERDICT))
    rows = tuple(replace(row, cells=tuple(row.cells[index] for index in order)) for row in block.rows)
    return replace(block, columns=tuple(block.columns[index] for index in order), rows=rows)


def is_wide(table: Table) -> bool:
    """Tell whether an upright sheet of A4 has no room for its columns."""
    return any(len(block.columns) > _WIDE for block in table.blocks)


def unmeasured(row: TableRow) -> bool:
    """Tell whether nothing at all is known of a row."""
    return all(cell.mean is None and cell.text in ("", BASELINE) for cell in row.cells)


def _to_fill(table: Table) -> str:
    """List of what was not measured, and the command that runs it."""
    if not table.command:
        return ""
    missing = sum(unmeasured(row) for block in table.blocks if not block.axis for row in block.rows)
    what = counted(missing, "row") if missing else "Some seeds or benchmarks"
    command = f'<code class="command">{escape(table.command)}</code>'
    return f'<p class="fill">{what} not measured yet. Run this to fill the table: {command}</p>'


@dataclass(frozen=True)
class _Markup:
    """A block as HTML."""

    table: Table
    block: Block
    runs: Collection[str]

    def text(self) -> str:
        block = self.block
        notes = "".join(f'<p class="note">{escape(note)}</p>' for note in block.notes)
        bodies = "".join(self._body(section, rows) for section, rows in sections(block.rows))
        return (
            f'<div class="block"><div class="scroll"><table><caption><span>{escape(block.title)}</span></caption>'
            f"<thead>{self._groups()}<tr>{self._head()}</tr></thead>{bodies}</table></div>{notes}</div>"
        )

    def _groups(self) -> str:
        if not any(column.group for column in self.block.columns):
            return ""
        parts = [(name, len(list(part))) for name, part in groupby(column.group for column in self.block.columns)]
        heads = "".join(
            f'<th scope="colgroup" colspan="{size}">{escape(name)}</th>' if name else f'<td colspan="{size}"></td>'
            for name, size in parts
        )
        return f'<tr class="groups"><td></td>{heads}</tr>'

    def _head(self) -> str:
        return '<th scope="col">Method</th>' + "".join(
            f'<th scope="col" class="{column.kind}{self._first(index)}">{escape(column.title)}</th>'
            for index, column in enumerate(self.block.columns)
        )

    def _first(self, index: int) -> str:
        """A class for the first column of a group."""
        columns = self.block.columns
        return (
            " first" if columns[index].group and (not index or columns[index - 1].group != columns[index].group) else ""
        )

    def _body(self, section: str, rows: list[TableRow]) -> str:
        span = len(self.block.columns) + 1
        head = f'<tr class="section"><th colspan="{span}"><span>{escape(section)}</span></th></tr>' if section else ""
        return f"<tbody>{head}{''.join(map(self._row, rows))}</tbody>"

    def _row(self, row: TableRow) -> str:
        label = escape(self.block.label(row)).replace(f" {SAME}", " <small>identical</small>")
        run = next((part for name in row.measured if (part := name.partition("/")[0]) in self.runs), None)
        label = f'<a href="#run-{escape(run)}">{label}</a>' if run else f"<span>{label}</span>"
        seeds = f' title="seeds {", ".join(map(str, row.seeds))}"' if row.seeds else ""
        head = f'<th scope="row"{seeds}><span class="label">{swatch(row.look, row.method)}{label}</span></th>'
        if unmeasured(row):
            return f'<tr>{head}<td class="missing none" colspan="{len(row.cells)}">not measured</td></tr>'
        cells = (self._cell(index, cell) for index, cell in enumerate(row.cells))
        return f"<tr>{head}{''.join(cells)}</tr>"

    def _cell(self, index: int, cell: Cell) -> str:
        """With the interval and the responses behind a value as its tooltip."""
        column, first = self.block.columns[index], self._first(index)
        value = _MARKUP.cell(cell, column, self.block.decimals)
        if column.kind is Kind.TEXT:
            return f'<td class="text{first}">{value}</td>'
        if cell.mean is None:
            return f'<td class="missing{first}">{value}</td>'
        of = f", {counted(cell.n, 'response')}" if cell.n else ""
        ends = "" if cell.low is None else f' title="95%: {cell.low:.2f} to {cell.high:.2f}{of}"'
        kind = f' class="{first.strip()}"' if first else ""
        return f'<td{kind} data-value="{cell.mean:.6g}"{ends}>{value}</td>'
