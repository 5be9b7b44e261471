"""Tables as an HTML fragment: semantic, sortable by the page's script (`data-value`), readable without any."""

from html import escape

from tepo.reporting.colours import DASHES, Look, look
from tepo.reporting.table import Block, Cell, Column, Kind, Table, format_interval, format_value, sections

_BORDERS = dict(zip(DASHES.values(), ("solid", "dashed", "dotted", "double", "ridge"), strict=True))
_TAG = {1: ("<b>", "</b>"), 2: ("<u>", "</u>")}


def swatch(own: Look | None, method: str) -> str:
    """The colour and dash of a row's curves as a CSS variable: a border for what stands before its label."""
    style = own or look(method)
    return f"--swatch: 3px {_BORDERS[style.dash]} {style.colour}"


def render(table: Table) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return (
        f'<section class="result" id="table-{escape(table.name)}"><h2>{escape(table.title)}</h2>'
        f'{"".join(map(_block, table.blocks))}<ul class="notes">{notes}</ul></section>\n'
    )


def _block(block: Block) -> str:
    head = '<th scope="col">Method</th>' + "".join(
        f'<th scope="col" class="{column.kind}">{escape(column.title)}</th>' for column in block.columns
    )
    bodies = "".join(_body(block, section, rows) for section, rows in sections(block.rows))
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in block.notes)
    return (
        f'<div class="scroll"><table><caption>{escape(block.title)}</caption>'
        f"<thead><tr>{head}</tr></thead>{bodies}</table></div>{notes}"
    )


def _body(block: Block, section: str, rows: list) -> str:
    lines = (
        [f'<tr class="section"><th colspan="{len(block.columns) + 1}">{escape(section)}</th></tr>'] if section else []
    )
    for row in rows:
        cells = "".join(
            _cell(cell, column, block.decimals) for cell, column in zip(row.cells, block.columns, strict=True)
        )
        lines.append(f'<tr style="{swatch(row.look, row.method)}"><th scope="row">{escape(row.label)}</th>{cells}</tr>')
    return f"<tbody>{''.join(lines)}</tbody>"


def _cell(cell: Cell, column: Column, decimals: int) -> str:
    value = escape(format_value(cell, column, decimals))
    if column.kind is Kind.TEXT:
        return f'<td class="text">{value}</td>'
    if cell.mean is None:
        return '<td class="missing">–</td>'
    start, end = _TAG.get(cell.rank, ("", ""))
    interval = format_interval(cell, column, decimals)
    exact = f' title="95% interval {cell.low:.2f} to {cell.high:.2f}, n = {cell.n}"' if interval else ""
    small = f" <small>{escape(interval)}</small>" if interval else ""
    return f'<td data-value="{cell.mean:.6g}"{exact}>{start}{value}{end}{small}</td>'
