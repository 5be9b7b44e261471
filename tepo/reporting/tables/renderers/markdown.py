"""Tables in GitHub-flavoured Markdown: best in bold, second underlined."""

from tepo.reporting.tables.cells import Markup
from tepo.reporting.tables.table import Kind, Table

_SPECIAL = str.maketrans({character: "\\" + character for character in "\\`*_[]<>|"})


def escaped(text: str) -> str:
    """Text whose characters mean nothing to Markdown."""
    return text.translate(_SPECIAL)


_MARKUP = Markup(escaped, "**%s**", "<u>%s</u>", " %s")


def render(table: Table) -> str:
    lines = [f"## {escaped(table.title)}", ""]
    for block in table.blocks:
        align = [":--", *(":--" if column.kind is Kind.TEXT else "--:" for column in block.columns)]
        grid = [["", *(escaped(column.title) for column in block.columns)], align]
        for section, rows in _MARKUP.lines(block):
            if section:
                grid.append([f"*{section}*", *([""] * len(block.columns))])
            grid += rows
        lines += [*[f"**{escaped(block.title)}**", "", *(f"| {' | '.join(cells)} |" for cells in grid)], ""]
        if block.notes:
            lines += [*(f"- {escaped(note)}" for note in block.notes), ""]
    lines += [f"- {escaped(note)}" for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"
