"""Figures of what a study varies or tunes: accuracy over a sweep, and the validation accuracy of each setting tried."""

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from tepo.reporting.colours import look
from tepo.reporting.figures.curves import STYLE, line_style, settled
from tepo.reporting.tables.table import Block
from tepo.reporting.tables.tuned_table import TunedLine

LINES = "Average accuracy as lines"  # caption of a sweep's figure
_LOG_FROM = 8  # values that span this factor or more are shown on a log axis


def sweep_figure(blocks: Sequence[Block]) -> Figure:
    """Average accuracy over what varies: a panel a block, a line a row, its band the 95% interval of the table.

    The axis is logarithmic where the values are positive numbers that span a factor of 8 or more, and has equal
    distances where they are names. Where nothing was measured a line has a gap.
    """
    labels = list(dict.fromkeys(row.label for block in blocks for row in block.rows))
    across = min(2, len(blocks))
    down, per_line = -(-len(blocks) // across), 3 * across
    with matplotlib.rc_context(STYLE):
        size = (6.4 * across, 4 * down + 0.2 * -(-len(labels) // per_line))
        figure = Figure(figsize=size, layout="constrained")
        for number, block in enumerate(blocks, start=1):
            _draw_sweep(figure.add_subplot(down, across, number), block)
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=per_line, fontsize=8)
        return settled(figure)


def _draw_sweep(axes: Axes, block: Block) -> None:
    positions = np.array(_positions([column.title for column in block.columns]))
    order = np.argsort(positions)  # values may be written in any order
    for row in block.rows:
        style, at = row.look or look(row.method), positions[order]
        mean, low, high = (
            np.array([getattr(cell, end) for cell in row.cells], dtype=float)[order] for end in ("mean", "low", "high")
        )
        axes.plot(at, mean, marker=".", linewidth=1.6, label=row.label, **line_style(style))
        axes.fill_between(at, low, high, color=style.colour, alpha=0.12, linewidth=0)
    if positions.min() > 0 and positions.max() >= _LOG_FROM * positions.min():
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


def tried_figure(lines: Sequence[TunedLine], axis: str, *, log: bool) -> Figure:
    """Validation accuracy over what is drawn first: a panel a row, on the same axes. A point a setting, filled where it
    has all tuning seeds, so that it could be chosen; a diamond for the default, a ring around the chosen one.

    lines: those without a score are left out. log: the axis is logarithmic."""
    shown = [line for line in lines if line.known]
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.2 * across, 2.5 * down + 0.2), layout="constrained")
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, line in zip(panels, shown, strict=False):
            colour = (line.look or look(line.method)).colour
            for one in line.tried:
                if one.at is None or one.score is None:
                    continue
                marker, face = "o" if one.drawn else "D", colour if one.complete else "white"
                axes.plot(one.at, 100 * one.score, marker, color=colour, markerfacecolor=face, markersize=4.5)
                if one.setting == line.setting:
                    axes.plot(one.at, 100 * one.score, "o", color="#222222", fillstyle="none", markersize=10)
            if log:
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter(LogFormatter())  # whose labels are no formulas
                axes.xaxis.set_minor_formatter(LogFormatter())
            axes.set_title(", ".join(filter(None, (line.label, line.model))), loc="left", fontsize=9)
            axes.set_xlabel(axis)
            axes.set_ylabel("validation accuracy, %")
        for axes in panels[len(shown) :]:
            axes.remove()
        return settled(figure)
