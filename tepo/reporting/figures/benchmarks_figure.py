"""Accuracy per benchmark as bars with intervals and as a radar, from a result table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from tepo.evaluation.statistics.comparison import AVERAGE, MEAN
from tepo.reporting.colours import Look, look
from tepo.reporting.figures.curves import STYLE, line_style, settled
from tepo.reporting.tables.table import Block, Kind, TableRow


def benchmark_figure(block: Block) -> Figure:
    """A radar beside grouped bars, one colour per row; rows without any number are left out.

    Error bars: the 95% interval. The earlier TEPO paper (arXiv 2510.09369) shows its benchmarks so in Figure 1. The
    radar's rings are percent from 0, the same on every axis: rescaled axes would turn noise into spikes.
    """
    keys = [
        index
        for index, column in enumerate(block.columns)
        if column.kind is Kind.SCORE and column.key not in (AVERAGE, MEAN)
    ]
    titles = [block.columns[index].title for index in keys]
    rows = [row for row in block.rows if any(row.cells[index].mean is not None for index in keys)]
    styles = {row.key: row.look or look(row.method) for row in rows}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4 + max(6.0, 0.18 * len(rows) * len(keys)), 4.2), layout="constrained")
        grid = figure.add_gridspec(1, 2, width_ratios=[1, 1.8])
        _radar(figure.add_subplot(grid[0], projection="polar"), rows, styles, keys, titles)
        _bars(figure.add_subplot(grid[1]), rows, styles, keys, titles)
        if rows:
            handles, labels = figure.axes[1].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(rows)), fontsize=8)
        return settled(figure)


def _radar(
    axes: Any, rows: Sequence[TableRow], styles: Mapping[str, Look], keys: Sequence[int], titles: Sequence[str]
) -> None:
    angles = [2 * math.pi * index / len(keys) for index in range(len(keys))]
    for row in rows:
        values = [row.cells[index].mean for index in keys]
        if all(value is not None for value in values):  # a radar with a hole would be read as zero
            axes.plot([*angles, angles[0]], [*values, values[0]], linewidth=1.5, **line_style(styles[row.key]))
    axes.set_xticks(angles, titles, fontsize=8)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="y", labelsize=7)
    axes.spines["polar"].set_visible(False)


def _bars(
    axes: Any, rows: Sequence[TableRow], styles: Mapping[str, Look], keys: Sequence[int], titles: Sequence[str]
) -> None:
    width = 0.84 / max(1, len(rows))
    positions = np.arange(len(keys), dtype=float)
    for number, row in enumerate(rows):
        cells = [row.cells[index] for index in keys]
        means = np.array([math.nan if cell.mean is None else cell.mean for cell in cells])
        low = np.array([mean if cell.low is None else cell.low for cell, mean in zip(cells, means, strict=True)])
        high = np.array([mean if cell.high is None else cell.high for cell, mean in zip(cells, means, strict=True)])
        style = styles[row.key]
        at = positions + (number - (len(rows) - 1) / 2) * width
        axes.bar(
            at,
            means,
            width * 0.92,
            color=style.colour,
            alpha=0.85,
            hatch=style.hatch,
            edgecolor="white",
            linewidth=0.4,
            label=row.label,
        )
        axes.errorbar(at, means, yerr=np.abs([means - low, high - means]), fmt="none", ecolor="#8a8a8a", elinewidth=1.2)
    axes.set_xticks(positions, titles)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("accuracy, %")
    axes.set_ylim(bottom=0)
