"""Tables in GitHub-flavoured Markdown: best in bold, second underlined."""

from tepo.reporting.tables.cells import Markup
from tepo.reporting.tables.table import Kind, Table

_SPECIAL = str.maketrans({character: "\\" + character for character in "\\`*_[]<>|"})


def _escape(text: str) -> str:
    return text.translate(_SPECIAL)


_MARKUP = Markup(_escape, "**%s**", "<u>%s</u>", " %s")


def render(table: Table) -> str:
    lines = [f"## {_escape(table.title)}", ""]
    for block in table.blocks:
        align = [":--", *(":--" if column.kind is Kind.TEXT else "--:" for column in block.columns)]
        grid = [["", *(_escape(column.title) for column in block.columns)], align]
        for section, rows in _MARKUP.lines(block):
            if section:
                grid.append([f"*{section}*", *([""] * len(block.columns))])
            grid += rows
        lines += [*[f"**{_escape(block.title)}**", "", *(f"| {' | '.join(cells)} |" for cells in grid)], ""]
        if block.notes:
            lines += [*(f"- {_escape(note)}" for note in block.notes), ""]
    lines += [f"- {_escape(note)}" for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"
