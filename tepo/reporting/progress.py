"""Progress for people: bars and lines on standard error, or in a notebook's cell."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from tepo.common.errors import UserError
from tepo.common.text import spelt


class Screen(Console):
    """A console that takes text as it is: labels, responses and errors hold what a file, a model or a stranger wrote.

    No markup, no names of emoji; control characters are spelt out (`spelt`)."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Spelt before it is laid out, so that it has its place."""
        return super().render_str(spelt(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The same for text that came as a Text; rich's own controls move the cursor."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(spelt(segment.text), segment.style)


console = Screen(stderr=True)


def say(text: str, out: Console = console) -> None:
    """One line; the terminal wraps it where it must, so that it can be copied as one."""
    out.print(text, soft_wrap=True)


@contextmanager
def waiting(text: str, quiet: bool = False) -> Iterator[None]:
    """A line that moves on a terminal while nothing else can be shown, and is gone afterwards; in a file nothing."""
    if quiet or not console.is_terminal:
        yield
    else:  # drawn at once, where a `Status` waits for its clock
        with Live(Spinner("dots", text), console=console, transient=True):
            yield


@contextmanager
def bar(title: str, total: int, quiet: bool) -> Iterator[Callable[[float, str], None]]:
    """A progress bar on standard error; the remaining time is that of the recent steps. Call it with (done, note)."""
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        *times,
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console, disable=quiet) as progress:
        task = progress.add_task(title, total=total, note="")
        try:
            yield lambda done, note: progress.update(task, completed=done, note=note)
        except UserError:  # the bar of what never began would stand above its message
            progress.live.transient = not progress.tasks[0].completed
            raise


@contextmanager
def benchmark_bar(total: int, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar over benchmarks, of which several may be under way, shown from the first call on: with a
    benchmark, its rows done and its rows in all."""
    with ExitStack() as stack:
        reported: dict[str, tuple[int, int]] = {}
        advance: list[Callable[[float, str], None]] = []

        def report(name: str, rows: int, all_rows: int) -> None:
            if not advance:
                advance.append(stack.enter_context(bar("benchmarks", total, quiet)))
            reported[name] = rows, all_rows
            note = f"{name} {rows}/{all_rows}"
            if (under_way := sum(done < of for done, of in reported.values())) > 1:
                every = [sum(numbers) for numbers in zip(*reported.values(), strict=True)]
                note = f"{every[0]}/{every[1]} responses, {under_way} benchmarks under way"
            advance[0](sum(done / of for done, of in reported.values()), note)

        yield report
