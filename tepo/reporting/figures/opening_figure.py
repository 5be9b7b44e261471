"""The opening graphic: what the paper printed and what was measured here, in two aligned columns with axes of their own
that are never joined, as other models on other problems give them."""

import textwrap
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tepo.common.text import counted
from tepo.reporting.colours import look
from tepo.reporting.figures.curves import LINK_INCHES, STYLE
from tepo.reporting.headline import headline, paper_headline
from tepo.reporting.paper.audit import audit
from tepo.reporting.tables.table import Comparison, Table

_MOST = 12  # rows that have room
_FAINT = "#444444"


def opening_table(tables: Sequence[Table]) -> Table | None:
    """The first table of which the paper printed a difference that was measured here; else the first that compares
    anything; None for pages without comparisons."""
    known = [table for table in tables if any(one.measured for one in table.comparisons)]
    printed = [table for table in known if any(one.measured and one.paper is not None for one in table.comparisons)]
    return next(iter([*printed, *known]), None)


def audit_line() -> str:
    """The audit of the paper's own tables, in a sentence."""
    known = audit()
    return (
        f"{known.following} of the paper's {len(known.averages)} printed averages follow from their own columns, and "
        f"{known.checked - len(known.findings)} of its {known.checked} printed differences and ranks from its tables."
    )


def opening_figure(table: Table, what: str) -> Figure:
    """The picture of a link: the finding, and columns "The paper printed" (where it did) and "Measured here", a line a
    row. what: was run, in a sentence."""
    shown, more = _shown(table)
    printed = any(one.paper is not None for one in shown)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=LINK_INCHES)
        title = textwrap.fill(paper_headline(table) or headline(table), 66)
        figure.text(0.03, 0.95, title, fontsize=21, fontweight="bold", va="top")
        figure.text(0.03, 0.835, textwrap.fill(f"{table.title}. {what}", 130), fontsize=11, va="top", color=_FAINT)
        right = figure.add_axes((0.65, 0.2, 0.32, 0.5) if printed else (0.29, 0.2, 0.66, 0.5))
        first = figure.add_axes((0.29, 0.2, 0.32, 0.5)) if printed else right
        if printed:
            _printed(first, shown)
        _measured(right, shown)
        first.set_yticks(range(len(shown)), [_short(one.row.label, 38) for one in shown], fontsize=10)
        caution = textwrap.fill(more + _caution(printed), 150)
        figure.text(0.03, 0.02, caution, fontsize=10, va="bottom", color=_FAINT)
        return figure


def columns_figure(table: Table, *, narrow: bool = False) -> Figure:
    """The two columns for the page, whose heading is the finding. narrow: for a phone, one below the other."""
    shown, more = _shown(table)
    caution = textwrap.fill(more + _caution(True), 62 if narrow else 140)
    left, wide, across = (1.75, 2.2, 1) if narrow else (2.9, 3.15, 2)  # inches; panels in a line
    tall, below = 0.3 * len(shown) + 0.1, 0.16 * (caution.count("\n") + 1)
    panel = tall + 0.95  # with title and axis
    width, height = left + across * (wide + 0.2), panel * (2 if narrow else 1) + below
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        for number, draw in enumerate((_printed, _measured)):
            x, y = left + (number % across) * (wide + 0.2), height - panel * (number // across) - tall - 0.35
            axes = figure.add_axes((x / width, y / height, wide / width, tall / height))
            draw(axes, shown)
            if number % across == 0:
                axes.set_yticks(range(len(shown)), [_short(one.row.label, 20 if narrow else 36) for one in shown])
        figure.text(0.01, 0.0, caution, fontsize=8.5, va="bottom", color=_FAINT)
        return figure


def _shown(table: Table) -> tuple[list[Comparison], str]:
    """The rows that are drawn, those of the paper where it has any, and a word on the others."""
    shown = [one for one in table.comparisons if one.measured and one.paper is not None]
    shown = shown or [one for one in table.comparisons if one.measured]
    more = f"{counted(len(shown) - _MOST, 'further row')} in the tables. " if len(shown) > _MOST else ""
    return shown[:_MOST], more


def text_figure(title: str, text: str) -> Figure:
    """A picture for a page that compares nothing."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=LINK_INCHES)
        figure.text(0.05, 0.9, textwrap.fill(title, 46), fontsize=27, fontweight="bold", va="top")
        figure.text(0.05, 0.55, textwrap.fill(text, 72), fontsize=18, va="top", linespacing=1.5)
        return figure


def _printed(axes: Axes, shown: Sequence[Comparison]) -> None:
    _column(axes, shown, "The paper printed", [one.paper for one in shown])


def _measured(axes: Axes, shown: Sequence[Comparison]) -> None:
    _column(axes, shown, "Measured here", [one.cell.mean for one in shown])
    for index, one in enumerate(shown):
        if one.cell.low is not None and one.cell.high is not None:
            axes.plot([one.cell.low, one.cell.high], [index, index], color="#333333", linewidth=1.4, zorder=1)


def _column(axes: Axes, shown: Sequence[Comparison], title: str, values: Sequence[float | None]) -> None:
    for index, (one, value) in enumerate(zip(shown, values, strict=True)):
        if value is not None:
            colour = (one.row.look or look(one.row.method)).colour
            axes.plot([value], [index], marker="o", markersize=8, color=colour, zorder=2)
    axes.axvline(0, color="#555555", linewidth=1.2, zorder=0)
    axes.set_yticks(range(len(shown)), [""] * len(shown))
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.margins(x=0.1)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(f"points against {_short(_baseline(shown), 30)}", fontsize=9)


def _caution(printed: bool) -> str:
    if not printed:
        return "Dots: differences of the average; lines: 95% intervals."
    return (
        "Other models on other problems: the two columns have axes of their own. A difference that does not show here "
        f"is not refuted, and one that shows is not confirmed. Lines: 95% intervals. {audit_line()}"
    )


def _baseline(shown: Sequence[Comparison]) -> str:
    labels = {one.baseline.label for one in shown}
    return labels.pop() if len(labels) == 1 else "the baseline of the same setting"


def _short(text: str, letters: int) -> str:
    """The text, without its middle where it is long: its end may tell it apart from others."""
    half = letters // 2
    return text if len(text) <= letters else f"{text[: half - 1]}…{text[-half:]}"
