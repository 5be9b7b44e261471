"""Tables in GitHub-flavoured Markdown: best in bold, second underlined."""

from tepo.reporting.tables.table import Block, Cell, Column, Kind, Table, format_interval, format_value, sections

_SPECIAL = str.maketrans({character: "\\" + character for character in "\\`*_[]<>|"})


def render(table: Table) -> str:
    lines = [f"## {_escape(table.title)}", ""]
    for block in table.blocks:
        lines += [*_block(block), ""]
        if block.notes:
            lines += [*(f"- {_escape(note)}" for note in block.notes), ""]
    lines += [f"- {_escape(note)}" for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def _escape(text: str) -> str:
    return text.translate(_SPECIAL)


def _block(block: Block) -> list[str]:
    align = [":--" if column.kind is Kind.TEXT else "--:" for column in block.columns]
    lines = [
        f"**{_escape(block.title)}**",
        "",
        _line(["", *(_escape(column.title) for column in block.columns)]),
        _line([":--", *align]),
    ]
    for section, rows in sections(block.rows):
        if section:
            lines.append(_line([f"*{_escape(section)}*", *([""] * len(block.columns))]))
        lines += [
            _line(
                [
                    _escape(row.label),
                    *(
                        _cell(cell, column, block.decimals)
                        for cell, column in zip(row.cells, block.columns, strict=True)
                    ),
                ]
            )
            for row in rows
        ]
    return lines


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(cell: Cell, column: Column, decimals: int) -> str:
    text = format_value(cell, column, decimals)
    text = {1: f"**{text}**", 2: f"<u>{text}</u>"}.get(cell.rank, _escape(text))
    return f"{text} {_escape(format_interval(cell, column, decimals))}".rstrip()
