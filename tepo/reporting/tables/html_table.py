"""Tables as an HTML fragment: semantic, readable without scripts, which only copy it."""

from collections.abc import Collection
from html import escape

from tepo.common.text import counted
from tepo.reporting.colours import Look, look
from tepo.reporting.tables.cells import Markup
from tepo.reporting.tables.table import (
    BASELINE,
    OUTCOME,
    SAME,
    VERDICT,
    Cell,
    Column,
    Kind,
    Table,
    TableBlock,
    TableRow,
)

_NOTES = 3  # of a block that are not folded
_MARKUP = Markup(escape, "<b>%s</b>", "<u>%s</u>", " <small>%s</small>")


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
    head = f'<section class="result" id="table-{escape(table.name)}"><h2>{escape(table.title)}</h2>'
    return f"{head}{body(table)}</section>\n"


def body(table: Table, runs: Collection[str] = ()) -> str:
    """Blocks and notes. runs: ids of runs that the page has an entry of; a row links to its first."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    blocks = "".join(_block(block, runs) for block in table.blocks)
    return f'{blocks}{_to_fill(table)}<ul class="notes">{notes}</ul>'


def _unmeasured(row: TableRow) -> bool:
    """Tell whether nothing at all is known of a row."""
    return all(cell.mean is None and cell.text in ("", BASELINE) for cell in row.cells)


def _to_fill(table: Table) -> str:
    """A sentence on what was not measured, with the command that runs it."""
    if not table.command:
        return ""
    missing = sum(_unmeasured(row) for block in table.blocks if not block.axis for row in block.rows)
    what = counted(missing, "row") if missing else "Some seeds or benchmarks"
    command = f'<code class="command">{escape(table.command)}</code>'
    return f'<p class="fill">{what} not measured yet. Run this to fill the table: {command}</p>'


def _block(block: TableBlock, runs: Collection[str]) -> str:
    """Columns of comparisons come before those of benchmarks: on a narrow screen the last ones lie out of sight."""
    compared = ("delta", VERDICT, OUTCOME)
    block = block.with_columns(sorted(range(len(block.columns)), key=lambda at: block.columns[at].key not in compared))
    titles = "".join(f'<th scope="col" class="{column.kind}">{escape(column.title)}</th>' for column in block.columns)
    rows = "".join(_row(block, row, runs) for row in block.rows)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in block.notes)
    if len(block.notes) > _NOTES:
        notes = f'<details class="fold"><summary>{len(block.notes)} notes, one for each row</summary>{notes}</details>'
    first = "Claim" if any(row.sentence for row in block.rows) else "Method"
    return (
        f'<div class="block"><div class="scroll"><table class="{first.lower()}s">'
        f"<caption><span>{escape(block.title)}</span></caption>"
        f'<thead><tr><th scope="col">{first}</th>{titles}</tr></thead><tbody>{rows}</tbody></table></div>{notes}</div>'
    )


def _row(block: TableBlock, row: TableRow, runs: Collection[str]) -> str:
    label = escape(block.label(row)).replace(f" {SAME}", " <small>identical</small>")
    label = f"{escape(row.sentence)} <small>{label}</small>" if row.sentence else label
    run = next((part for name in row.measured if (part := name.partition("/")[0]) in runs), None)
    label = f'<a href="#run-{escape(run)}">{label}</a>' if run else f"<span>{label}</span>"
    seeds = f' title="seeds {", ".join(map(str, row.seeds))}"' if row.seeds else ""
    head = f'<th scope="row"{seeds}><span class="label">{swatch(row.look, row.method)}{label}</span></th>'
    if _unmeasured(row):
        return f'<tr>{head}<td class="missing none" colspan="{len(row.cells)}">not measured</td></tr>'
    pairs = zip(row.cells, block.columns, strict=True)
    return f"<tr>{head}{''.join(_cell(cell, column, block.decimals) for cell, column in pairs)}</tr>"


def _cell(cell: Cell, column: Column, decimals: int) -> str:
    """With the interval and the responses behind a value as its tooltip."""
    value = _MARKUP.cell(cell, column, decimals)
    if column.kind is Kind.TEXT:
        return f'<td class="text">{value}</td>'
    if cell.mean is None:
        return f'<td class="missing">{value}</td>'
    of = f", {counted(cell.n, 'response')}" if cell.n else ""
    ends = "" if cell.low is None else f' title="95%: {cell.low:.2f} to {cell.high:.2f}{of}"'
    return f'<td data-value="{cell.mean:.6g}"{ends}>{value}</td>'
