"""A sweep as lines over what varies."""

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tepo.reporting.colours import look
from tepo.reporting.figures.curves import STYLE, settled
from tepo.reporting.tables.table import Block

_SCALE = 8  # values that span this factor or more are shown on a log axis


def sweep_figure(blocks: Sequence[Block]) -> Figure:
    """Average accuracy over what varies: a panel a block, a line a row, its band the 95% interval of the table.

    The axis is logarithmic where the values are positive numbers that span a factor of 8 or more, and has equal
    distances where they are names. Where nothing was measured a line has a gap.
    """
    across = min(2, len(blocks))
    down = -(-len(blocks) // across)
    labels = list(dict.fromkeys(row.label for block in blocks for row in block.rows))
    per_line = 3 * across
    with matplotlib.rc_context(STYLE):
        size = (6.4 * across, 4 * down + 0.2 * -(-len(labels) // per_line))
        figure = Figure(figsize=size, layout="constrained")
        for number, block in enumerate(blocks, start=1):
            _draw(figure.add_subplot(down, across, number), block)
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=per_line, fontsize=8)
        return settled(figure)


def _draw(axes: Axes, block: Block) -> None:
    positions = np.array(_positions([column.title for column in block.columns]))
    order = np.argsort(positions)  # values may be written in any order
    for row in block.rows:
        style = row.look or look(row.method)
        mean, low, high = (
            np.array([getattr(cell, end) for cell in row.cells], dtype=float)[order] for end in ("mean", "low", "high")
        )
        dashes = style.dash or (None, None)
        at = positions[order]
        axes.plot(at, mean, color=style.colour, dashes=dashes, marker=".", linewidth=1.6, label=row.label)
        axes.fill_between(at, low, high, color=style.colour, alpha=0.12, linewidth=0)
    if positions.min() > 0 and positions.max() >= _SCALE * positions.min():
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(positions, [column.title for column in block.columns])
    axes.set_xlabel(block.axis)
    axes.set_ylabel("average accuracy, %")
    axes.set_ylim(bottom=0)
    axes.set_title(block.title, loc="left", fontsize=10)


def _positions(values: Sequence[str]) -> list[float]:
    """Numbers as they are; where one is a name or infinite, 0, 1, 2 …"""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        numbers = [math.inf]
    return numbers if all(map(math.isfinite, numbers)) else [float(index) for index in range(len(values))]
