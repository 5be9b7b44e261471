"""A sweep's map as a drawing, for documents: method x value, shaded by accuracy, hatched where runs ended early."""

from typing import Any

from tepo.reporting.figures import Figure, Rectangle, matplotlib
from tepo.reporting.figures.curves import STYLE
from tepo.reporting.page.sweep_map import SweepMap

_ROW, _COLUMN, _LETTER = 0.27, 0.68, 0.075  # inches; a column at least
_BLUE, _RED = (0.0, 0.447, 0.698), "#D55E00"


def map_figure(sweep: SweepMap) -> Figure:
    """The map with its rows in the order of the page, what each loses over the grid, and a key."""
    rows, columns = len(sweep.rows), len(sweep.values)
    names = [row.label + (" (identical)" if row.same else "") for row in sweep.rows]
    left = 0.2 + _LETTER * max(map(len, [*names, "Method"]))
    column = max(_COLUMN, _LETTER * max(map(len, sweep.values)) + 0.2)
    width, height = left + column * (columns + 1) + 0.4, _ROW * (rows + 3.2)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        box = (left / width, _ROW / height, column * (columns + 1) / width, _ROW * (rows + 1) / height)
        axes = figure.add_axes(box)
        axes.set(xlim=(0, columns + 1), ylim=(rows, -1))
        axes.axis("off")
        for at, title in enumerate([*sweep.values, "loses"]):
            axes.text(at + 0.5, -0.4, title, ha="center", va="center", fontweight="bold")
        for down, (row, name) in enumerate(zip(sweep.rows, names, strict=True)):
            axes.text(-0.1, down + 0.5, name, ha="right", va="center")
            for at, cell in enumerate(row.cells):
                share = 0.04 + 0.5 * (cell.share or 0.0)
                shade = tuple(1 - share * (1 - part) for part in _BLUE)
                hatch: dict[str, Any] = {"hatch": "////", "edgecolor": _RED} if cell.ended else {}
                axes.add_patch(Rectangle((at + 0.02, down + 0.04), 0.96, 0.92, facecolor=shade, linewidth=0, **hatch))
                plain = {"facecolor": "white", "edgecolor": "none", "pad": 1} if cell.ended else None
                axes.text(at + 0.5, down + 0.5, cell.text, ha="center", va="center", bbox=plain)
            if row.lost is not None:
                axes.text(columns + 0.5, down + 0.5, f"{row.lost:.1f}", ha="center", va="center", color="#444444")
        figure.text(0.1 / width, 1 - 0.2 * _ROW / height, f"{sweep.title}, %", fontweight="bold", va="top")
        key = "Loses: average loss over the grid against the row's best, points."
        key += " Hatched: runs ended early." if sweep.ended else ""
        figure.text(0.1 / width, 0.2 * _ROW / height, key, fontsize=8, color="#444444")
        return figure
