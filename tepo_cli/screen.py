"""Lines that commands print beside their results.

A person copies ids, names, paths and commands: none is cut or broken, however narrow the terminal.
"""

import os
from textwrap import wrap

from rich.cells import cell_len
from rich.table import Column, Table

from tepo.reporting.progress import Screen, say

_EDGE = 3  # of a column: a space on each side, and a line


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
    needed = []
    for column in table.columns:
        texts = [str(cell) for cell in (column.header, *column.cells)]
        words = [part for text in texts for part in ([text] if column.no_wrap else [*text.split(), ""])]
        column.min_width = max(map(cell_len, words))
        needed.append(column.min_width + _EDGE)
    width, parts, used = screen_width(stderr), [[0]], needed[0] + 1
    for index, least in enumerate(needed[1:], 1):
        if len(parts[-1]) > 1 and used + least > width:
            parts.append([0])
            used = needed[0] + 1
        parts[-1].append(index)
        used += least
    for number, part in enumerate(parts):
        wide = max(width, sum(needed[index] for index in part) + 1)  # where two columns do not fit, nothing is cut
        continued = " (continued)" if number and table.title else ""
        shown = table if len(parts) == 1 else _part(table, part, f"{table.title or ''}{continued}")
        Screen(stderr=stderr, width=wide).print(shown)


def _part(table: Table, indices: list[int], title: str) -> Table:
    """The columns at `indices`."""
    chosen = [table.columns[index] for index in indices]
    heads = (Column(str(one.header), no_wrap=one.no_wrap, min_width=one.min_width) for one in chosen)
    part = Table(*heads, title=title or None)
    for row, cells in zip(table.rows, zip(*(column.cells for column in chosen), strict=True), strict=True):
        part.add_row(*cells, style=row.style)
    return part


def screen_width(stderr: bool = False) -> int:
    """Columns of the screen, or what COLUMNS says; of a file or pipe, which has no edge, 150."""
    screen = Screen(stderr=stderr)
    return screen.width if screen.is_terminal or os.environ.get("COLUMNS", "").isdigit() else 150
