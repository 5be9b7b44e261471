"""Lines and tables that commands print beside their results.

A person copies ids, names, paths and commands: none is cut or broken, however narrow the terminal.
"""

import os
from collections.abc import Collection, Sequence
from textwrap import wrap

from rich.cells import cell_len
from rich.table import Column, Table

from tepo.reporting.progress import Screen, say

_EDGE = 3  # of a column: a space on each side, and a line


def say_wrapped(text: str) -> None:
    """A sentence, broken between words where the screen ends; no word is cut."""
    for line in wrap(text, screen_width(stderr=True), break_long_words=False, break_on_hyphens=False):
        say(line)


def show(
    heads: Sequence[str],
    rows: Collection[Sequence[str]],
    title: str = "",
    *,
    wrapped: Collection[str] = (),
    lines: bool = False,
    stderr: bool = False,
) -> None:
    """Print a table. wrapped: heads of the columns whose cells are broken between words; lines: between the rows.

    One that is wider than the screen is printed in parts, each with the first column: rich would cut cells to
    `35ecda…`.
    """
    needed = []
    for index, head in enumerate(heads):
        texts = [head, *(row[index] for row in rows)]
        words = [word for text in texts for word in (text.split() if head in wrapped else [text])]
        needed.append(max(map(cell_len, words)))
    width, parts = screen_width(stderr), [[0]]
    for index in range(1, len(heads)):
        if len(parts[-1]) > 1 and sum(needed[column] + _EDGE for column in (*parts[-1], index)) + 1 > width:
            parts.append([0])
        parts[-1].append(index)
    for number, part in enumerate(parts):
        columns = (
            Column(heads[column], no_wrap=heads[column] not in wrapped, min_width=needed[column]) for column in part
        )
        heading = f"{title} (continued)" if number and title else title
        table = Table(*columns, title=heading or None, show_lines=lines)
        for row in rows:
            table.add_row(*(row[column] for column in part))
        # where two columns do not fit, nothing is cut
        Screen(stderr=stderr, width=max(width, sum(needed[column] + _EDGE for column in part) + 1)).print(table)


def screen_width(stderr: bool = False) -> int:
    """Columns of the screen, or what COLUMNS says; of a file or pipe, which has no edge, 150."""
    screen = Screen(stderr=stderr)
    return screen.width if screen.is_terminal or os.environ.get("COLUMNS", "").isdigit() else 150
