"""What commands print beside their results. A person copies ids, names, paths and commands: none is cut or broken, however narrow the terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

console = Console(stderr=True, markup=False)


def say(text: str, out: Console = console) -> None:
    """One line; the terminal wraps it where it must, so that it is whole when copied."""
    out.print(text, soft_wrap=True)


def whole(name: str) -> Column:
    """A column of ids, names or numbers, whose cells stay on one line."""
    return Column(name, no_wrap=True)


def show(table: Table, *, stderr: bool = False) -> None:
    """Print a table of text cells, broken between words only. Where that does not fit, the table is wider than the screen: rich would cut cells to `35ecda…`."""
    for column in table.columns:
        texts = [str(cell) for cell in (column.header, *column.cells)]
        column.min_width = max(cell_len(part) for text in texts for part in ([text] if column.no_wrap else [*text.split(), ""]))
    screen = Console(stderr=stderr, markup=False, width=screen_width(stderr))
    screen.width = max(screen.width, Measurement.get(screen, screen.options.update(width=10_000), table).minimum)
    screen.print(table)


def screen_width(stderr: bool = False) -> int:
    """Columns of the screen; of a file or pipe, which has no edge, at least 150."""
    screen = Console(stderr=stderr, markup=False)
    return screen.width if screen.is_terminal else max(screen.width, 150)


@contextmanager
def bar(title: str, total: int, quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """A progress bar on standard error; the remaining time is that of the recent steps. Call it with (done, note)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    times = (TimeElapsedColumn(), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times, TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, disable=quiet) as progress:
        task = progress.add_task(title, total=total, note="")
        yield lambda done, note: progress.update(task, completed=done, note=note)
