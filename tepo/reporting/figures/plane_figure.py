"""The plane of best score against what a setting costs: up and to the left is better."""

import matplotlib
from matplotlib.figure import Figure

from tepo.reporting.colours import look
from tepo.reporting.figures.curves import STYLE, settled
from tepo.reporting.tables.sensitivity_table import BEST, LOST, ONE_FOR_ALL
from tepo.reporting.tables.table import Block, Cell


def plane_figure(block: Block) -> Figure:
    """A point a row of a block of `sensitivity_blocks`, with its intervals (Adkins et al. 2024, Figure 1)."""
    keys = [column.key for column in block.columns]
    across = ONE_FOR_ALL if ONE_FOR_ALL in keys else LOST
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.6), layout="constrained")
        axes = figure.add_subplot()
        for row in block.rows:
            x, y = (row.cells[keys.index(key)] for key in (across, BEST))
            style = row.look or look(row.method)
            axes.errorbar(
                [x.mean or 0.0],
                [y.mean or 0.0],
                xerr=_ends(x),
                yerr=_ends(y),
                fmt="o",
                color=style.colour,
                elinewidth=0.8,
                markersize=5,
                label=row.label,
            )
            axes.annotate(row.label, (x.mean or 0.0, y.mean or 0.0), (5, 4), textcoords="offset points", fontsize=7)
        axes.set_xlabel(f"{block.columns[keys.index(across)].title.lower()}, points")
        axes.set_ylabel("best average accuracy, %")
        axes.set_title(block.title, loc="left", fontsize=10)
        return settled(figure)


def _ends(cell: Cell) -> list[list[float]] | None:
    """Lengths below and above the mean; an interval of a maximum need not hold its own middle."""
    if cell.mean is None or cell.low is None or cell.high is None:
        return None
    return [[max(cell.mean - cell.low, 0.0)], [max(cell.high - cell.mean, 0.0)]]
