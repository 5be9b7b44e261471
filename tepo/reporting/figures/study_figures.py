"""Figures of what a study varies, fits or tunes: accuracy over a sweep, best score against the cost of a blind choice,
fitted curves, the expected best of k settings, the validation accuracy of each; and of the runs behind its means."""

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import partial
from textwrap import fill
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import LogFormatter
from matplotlib.transforms import Bbox

from tepo.evaluation.statistics.run_profiles import performance_profile
from tepo.evaluation.statistics.scaling_fit import FIRST_PART, fit
from tepo.reporting.colours import look
from tepo.reporting.figures.curves import STYLE, line_style, settled
from tepo.reporting.tables.expected_max_table import TunedLine
from tepo.reporting.tables.profile_table import RunGroup
from tepo.reporting.tables.scaling_table import COMPUTE, CurveRow
from tepo.reporting.tables.sweep_table import BEST, LOST, ONE_FOR_ALL
from tepo.reporting.tables.table import Block, Cell, TableRow

LINES = "Average accuracy as lines"  # caption of a sweep's figure
_TITLE = 44  # letters of a line of a narrow panel's title
_LOG_FROM = 8  # values that span this factor or more are shown on a log axis


def _line_panels(panels: Sequence[Callable[[Axes], None]], labels: Sequence[str], across: int) -> Figure:
    """Panels side by side with one legend below them; labels: the different ones of all lines."""
    down, per_line = -(-len(panels) // across), 3 * across
    with matplotlib.rc_context(STYLE):
        size = (6.4 * across, 4 * down + 0.2 * -(-len(labels) // per_line))
        figure = Figure(figsize=size, layout="constrained")
        for number, draw in enumerate(panels, start=1):
            draw(figure.add_subplot(down, across, number))
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=per_line, fontsize=8)
        return settled(figure)


def _line(axes: Axes, row: TableRow | TunedLine, at: Any, ends: Sequence[np.ndarray], alpha: float) -> None:
    """A row's line with its band. ends: mean, low and high, percent."""
    mean, low, high = ends
    style = row.look or look(row.method)
    axes.plot(at, mean, marker=".", linewidth=1.6, label=row.label, **line_style(style))
    axes.fill_between(at, low, high, color=style.colour, alpha=alpha, linewidth=0)


def sweep_figure(blocks: Sequence[Block]) -> Figure:
    """Average accuracy over what varies: a panel a block, a line a row, its band the 95% interval of the table.

    The axis is logarithmic where the values are positive numbers that span a factor of 8 or more, and has equal
    distances where they are names. Where nothing was measured a line has a gap.
    """
    labels = list(dict.fromkeys(row.label for block in blocks for row in block.rows))
    return _line_panels([partial(_draw_sweep, block=block) for block in blocks], labels, min(2, len(blocks)))


def _draw_sweep(axes: Axes, block: Block) -> None:
    positions = np.array(_positions([column.title for column in block.columns]))
    order = np.argsort(positions)  # values may be written in any order
    for row in block.rows:
        ends = [np.array([getattr(cell, end) for cell in row.cells], dtype=float) for end in ("mean", "low", "high")]
        _line(axes, row, positions[order], [values[order] for values in ends], 0.12)
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


def expected_best_figure(lines: Sequence[TunedLine]) -> Figure:
    """Expected best of k settings over k: a panel a model, a line a row that was tried at all settings, its band the
    interval of the table."""
    shown = [line for line in lines if line.best]
    models = list(dict.fromkeys(line.model for line in shown))
    labels = list(dict.fromkeys(line.label for line in shown))
    panels = [partial(_draw_best, lines=[line for line in shown if line.model == model]) for model in models]
    return _line_panels(panels, labels, len(models))


def _draw_best(axes: Axes, lines: Sequence[TunedLine]) -> None:
    for line in lines:
        ends = [100 * np.array([getattr(one, end) for one in line.best]) for end in ("mean", "low", "high")]
        _line(axes, line, [one.k for one in line.best], ends, 0.08)
    axes.set_title(lines[0].model, loc="left", fontsize=10)
    axes.set_xticks(range(1, len(lines[0].best) + 1))
    axes.set_xlabel("settings tried (k)")
    axes.set_ylabel("expected best validation accuracy, %")


def tried_figure(lines: Sequence[TunedLine], axis: str, *, log: bool) -> Figure:
    """Validation accuracy over what is drawn first: a panel a row, on the same axes. A point a setting, filled where it
    has all tuning seeds, so that it could be chosen; a diamond for the default, a ring around the chosen one.

    lines: those without a score are left out. log: the axis is logarithmic."""
    shown = [line for line in lines if line.best]
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


def plane_figure(block: Block) -> Figure:
    """Best score against what a setting costs: a point a row of a block of `sensitivity_blocks`, with its intervals; up
    and to the left is better (Adkins et al. 2024, Figure 1)."""
    keys = [column.key for column in block.columns]
    across = ONE_FOR_ALL if ONE_FOR_ALL in keys else LOST
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.6), layout="constrained")
        axes = figure.add_subplot()
        labels: list[Annotation] = []
        for row in block.rows:
            x, y = (row.cells[keys.index(key)] for key in (across, BEST))
            at = (x.mean or 0.0, y.mean or 0.0)
            axes.errorbar(
                [at[0]],
                [at[1]],
                xerr=_error_bar(x),
                yerr=_error_bar(y),
                fmt="o",
                color=(row.look or look(row.method)).colour,
                elinewidth=0.8,
                markersize=5,
                label=row.label,
            )
            to_point = {"arrowstyle": "-", "linewidth": 0.4, "color": "#999999", "shrinkA": 0, "shrinkB": 2}
            label = axes.annotate(row.label, at, (5, 4), textcoords="offset points", fontsize=7, arrowprops=to_point)
            labels.append(label)
        axes.set_xlabel(f"{block.columns[keys.index(across)].title.lower()}, points")
        axes.set_ylabel("best average accuracy, %")
        axes.set_title(block.title, loc="left", fontsize=10)
        settled(figure)
        _apart(labels, axes)
        return figure


def _apart(labels: Sequence[Annotation], axes: Axes) -> None:
    """Put each label beside its point, within the axes, where it lies on no other label or point: right or left, then
    step by step further off."""
    points = [axes.transData.transform(label.xy) for label in labels]
    placed = [Bbox.from_extents(x - 3, y - 3, x + 3, y + 3) for x, y in points]
    within = axes.get_window_extent()
    heights = [4 + sign * 8 * away for away in range(24) for sign in (1, -1)]
    sides: tuple[Literal["left", "right"], ...] = ("left", "right")
    tries = [(side, height) for height in heights for side in sides]
    for label in labels:
        for side, height in tries:
            label.set_horizontalalignment(side)
            label.xyann = (6 if side == "left" else -6, height)
            label.get_window_extent()  # puts it there
            box = Text.get_window_extent(label)  # without the line to its point
            if box.y1 <= within.y1 and box.y0 >= within.y0 and not box.count_overlaps(placed):
                break
        placed.append(box)


def _error_bar(cell: Cell) -> list[list[float]] | None:
    """Lengths below and above the mean; an interval of a maximum need not hold its own middle."""
    if cell.mean is None or cell.low is None or cell.high is None:
        return None
    return [[max(cell.mean - cell.low, 0.0)], [max(cell.high - cell.mean, 0.0)]]


def scaling_figure(rows: Sequence[CurveRow], over: str) -> Figure:
    """A panel a row, all on the same axes: each seed's validation scores as points, its fit as a line, the fit to the
    first two thirds and its prediction of the rest dashed in grey, the mean ceiling dotted.

    rows: with a fit. over: a key of COMPUTE."""
    across = min(3, len(rows))
    down = -(-len(rows) // across)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.8 * across, 2.9 * down + 0.2), layout="constrained")
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, row in zip(panels, rows, strict=False):
            assert row.fit
            colour = (row.look or look(row.method)).colour
            for seed, run in row.runs.items():
                curve = run.curve
                line, split = np.linspace(0, curve.compute[-1], 200)[1:], FIRST_PART * curve.compute[-1]
                axes.plot(curve.compute, 100 * curve.scores, ".", markersize=4, color=colour, alpha=0.5)
                axes.plot(line, 100 * row.fit.fits[seed].at(line), color=colour, linewidth=1.4)
                axes.plot(line, 100 * fit(curve.until(split)).at(line), color="#555555", dashes=(4, 2), linewidth=1)
                axes.axvline(split, color="#bbbbbb", linewidth=0.6)
            axes.axhline(100 * row.fit.ceiling.mean, color=colour, linestyle=":", linewidth=1)
            title = row.label + (" (fit not trusted)" if row.fit.doubt else "")
            axes.set_title(fill(title, _TITLE), loc="left", fontsize=9)
            axes.set_xlabel(COMPUTE[over])
            axes.set_ylabel("validation accuracy, %")
        for axes in panels[len(rows) :]:
            axes.remove()
        return settled(figure)


def profile_figure(group: RunGroup) -> Figure:
    """Performance profiles, the share of scores above each accuracy, a line a row with its pointwise 95% band; beside
    them each row's probability of improvement over the baseline, where the group has one."""
    thresholds = np.linspace(0, 1, 51)
    with matplotlib.rc_context(STYLE):
        panels = 1 if group.baseline is None else 2
        figure = Figure(figsize=(6.4 * panels, max(4.0, 1 + 0.28 * len(group.rows))), layout="constrained")
        axes = figure.add_subplot(1, panels, 1)
        for row in group.rows:
            profile, style = performance_profile(group.scores[row.key], thresholds), row.look or look(row.method)
            at, low, high, share = (100 * x for x in (thresholds, profile.low, profile.high, profile.share))
            axes.plot(at, share, drawstyle="steps-post", linewidth=1.6, label=row.label, **line_style(style))
            axes.fill_between(at, low, high, step="post", color=style.colour, alpha=0.08, linewidth=0)
        axes.set_xlabel("accuracy on a benchmark, %")
        axes.set_ylabel("runs and benchmarks above it, %")
        axes.set_title(group.title, loc="left", fontsize=10)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3 * panels, fontsize=8)
        if group.baseline is not None:
            _draw_improvements(figure.add_subplot(1, panels, 2), group, group.baseline.label)
        return settled(figure)


def _draw_improvements(axes: Axes, group: RunGroup, baseline: str) -> None:
    improvements = group.improvements()
    rows = [row for row in group.rows if row.key in improvements]
    for at, row in enumerate(rows):
        value, low, high = (100 * x for x in astuple(improvements[row.key]))
        colour = (row.look or look(row.method)).colour
        axes.plot([low, high], [at, at], color=colour, linewidth=1)
        axes.plot([value], [at], "o", color=colour, markersize=5)
    axes.axvline(50, color="#555555", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)  # the first row on top, as in the table
    axes.set_xlim(-3, 103)
    axes.set_xlabel(f"probability that a run is above one of {baseline}, %")
