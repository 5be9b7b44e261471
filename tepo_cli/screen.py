"""Lines that commands print beside their results.

A person copies ids, names, paths and commands: none is cut or broken, however narrow the terminal.
"""

import os
from textwrap import wrap

from rich.cells import cell_len
from rich.measure import Measurement
from rich.table import Column, Table

from tepo.reporting.progress import Screen, say


def fixed(name: str) -> Column:
    """A column of ids, names or numbers, whose cells stay on one line."""
    return Column(name, no_wrap=True)


def say_wrapped(text: str) -> None:
    """A sentence, broken between words where the screen ends; no word is cut."""
    for line in wrap(text, screen_width(stderr=True), break_long_words=False, break_on_hyphens=False):
        say(line)


def show(table: Table, *, stderr: bool = False) -> None:
    """Print a table of text cells, broken between words only.

    One that is wider than the screen is printed in parts, each with the first column: rich would cut cells to
    `35ecda…`.
    """
    for column in table.columns:
        texts = [str(cell) for cell in (column.header, *column.cells)]
        column.min_width = max(
            cell_len(part) for text in texts for part in ([text] if column.no_wrap else [*text.split(), ""])
        )
    screen = Screen(stderr=stderr, width=screen_width(stderr))
    for part in _parts(table, screen):
        wide = max(screen.width, _least(part, screen))  # where two columns alone do not fit, nothing is cut either
        Screen(stderr=stderr, width=wide).print(part)


def _parts(table: Table, screen: Screen) -> list[Table]:
    """The table, or as many columns at a time as fit."""
    if _least(table, screen) <= screen.width:
        return [table]
    parts, left = [], list(range(1, len(table.columns)))
    while left:
        fitting = [
            count for count in range(1, len(left) + 1) if _least(_part(table, left[:count]), screen) <= screen.width
        ]
        count = max(fitting, default=1)
        parts.append(_part(table, left[:count]))
        left = left[count:]
    for part in parts[1:]:
        part.title = f"{table.title} (continued)" if table.title else None
    return parts


def _part(table: Table, indices: list[int]) -> Table:
    """The first column and those at `indices`."""
    chosen = [table.columns[index] for index in (0, *indices)]
    part = Table(
        *(Column(str(column.header), no_wrap=column.no_wrap, min_width=column.min_width) for column in chosen),
        title=table.title,
    )
    for row, cells in zip(table.rows, zip(*(column.cells for column in chosen), strict=True), strict=True):
        part.add_row(*cells, style=row.style)
    return part


def _least(table: Table, screen: Screen) -> int:
    """Columns of the screen that it needs."""
    return Measurement.get(screen, screen.options.update(width=10_000), table).minimum


def screen_width(stderr: bool = False) -> int:
    """Columns of the screen, or what COLUMNS says; of a file or pipe, which has no edge, 150."""
    screen = Screen(stderr=stderr)
    return screen.width if screen.is_terminal or os.environ.get("COLUMNS", "").isdigit() else 150
