"""Scores over compute with their saturating fits."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tepo.evaluation.statistics.scaling_fit import FIRST_PART, Curve, Fit, fit
from tepo.reporting.colours import look
from tepo.reporting.figures.curves import STYLE, settled
from tepo.reporting.tables.scaling_table import COMPUTE, CurveRow

_ACROSS = 3
_DASHED = (4, 2)


def saturation_figure(rows: Sequence[CurveRow], over: str) -> Figure:
    """A panel a row, all on the same axes: each seed's validation scores as points, its fit as a line, the fit to the
    first two thirds and its prediction of the rest dashed in grey, the mean ceiling dotted.

    rows: with a fit. over: a key of COMPUTE."""
    across = min(_ACROSS, len(rows))
    down = -(-len(rows) // across)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.8 * across, 2.9 * down + 0.2), layout="constrained")
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, row in zip(panels, rows, strict=False):
            _draw(axes, row)
            axes.set_xlabel(COMPUTE[over])
            axes.set_ylabel("validation accuracy, %")
        for axes in panels[len(rows) :]:
            axes.remove()
        return settled(figure)


def _draw(axes: Axes, row: CurveRow) -> None:
    assert row.fit
    colour = (row.look or look(row.method)).colour
    for seed, run in row.runs.items():
        curve = run.curve
        line = np.linspace(0, curve.compute[-1], 200)[1:]
        axes.plot(curve.compute, 100 * curve.scores, ".", markersize=4, color=colour, alpha=0.5)
        axes.plot(line, 100 * row.fit.fits[seed].at(line), color=colour, linewidth=1.4)
        axes.plot(line, 100 * _early(curve).at(line), color="#555555", dashes=_DASHED, linewidth=1)
        axes.axvline(FIRST_PART * curve.compute[-1], color="#bbbbbb", linewidth=0.6)
    axes.axhline(100 * row.fit.ceiling.mean, color=colour, linestyle=":", linewidth=1)
    axes.set_title(row.label + (" (fit not trusted)" if row.fit.doubt else ""), loc="left", fontsize=9)


def _early(curve: Curve) -> Fit:
    return fit(curve.until(FIRST_PART * curve.compute[-1]))
