"""A table as text: terminal (rich), Markdown, LaTeX, CSV, HTML."""

from typing import TYPE_CHECKING

from tepo.common.errors import unknown_name
from tepo.reporting.tables.renderers import csv, html_table, latex, markdown, terminal
from tepo.reporting.tables.table import Table

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMATS = ("terminal", "markdown", "latex", "csv", "html")
SUFFIXES = {"terminal": ".txt", "markdown": ".md", "latex": ".tex", "csv": ".csv", "html": ".html"}


def check_format(format: str) -> None:
    """Raises UserError for a format that is none of FORMATS."""
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)


def render(table: Table, format: str = "terminal") -> "str | RenderableType":
    """The table in one of FORMATS: a rich renderable for "terminal", text otherwise.

    Raises UserError for another format.
    """
    check_format(format)
    match format:
        case "terminal":
            return terminal.render(table)
        case "markdown":
            return markdown.render(table)
        case "latex":
            return latex.render(table)
        case "csv":
            return csv.render(table)
    return html_table.render(table)


def as_text(table: Table, format: str, width: int = 160) -> str:
    """`render`, with the terminal form drawn into plain text of that width (for files and pipes)."""
    return terminal.plain(table, width) if format == "terminal" else str(render(table, format))
