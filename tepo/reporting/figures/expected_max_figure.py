"""The expected best of k settings as lines over k."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tepo.reporting.colours import look
from tepo.reporting.figures.curves import STYLE, settled
from tepo.reporting.tables.expected_max_table import TunedLine


def expected_best_figure(lines: Sequence[TunedLine]) -> Figure:
    """A panel a model, a line a row that was tried at all settings: the expected best over k, its band the interval of
    the table."""
    shown = [line for line in lines if line.best]
    models = list(dict.fromkeys(line.model for line in shown))
    labels = list(dict.fromkeys(line.label for line in shown))
    per_line = 3 * len(models)
    with matplotlib.rc_context(STYLE):
        size = (6.4 * len(models), 4 + 0.2 * -(-len(labels) // per_line))
        figure = Figure(figsize=size, layout="constrained")
        for number, model in enumerate(models, start=1):
            axes = figure.add_subplot(1, len(models), number)
            axes.set_title(model, loc="left", fontsize=10)
            _draw(axes, [line for line in shown if line.model == model])
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=per_line, fontsize=8)
        return settled(figure)


def _draw(axes: Axes, lines: Sequence[TunedLine]) -> None:
    for line in lines:
        style = line.look or look(line.method)
        k = [one.k for one in line.best]
        mean, low, high = (100 * np.array([getattr(one, end) for one in line.best]) for end in ("mean", "low", "high"))
        dashes = style.dash or (None, None)
        axes.plot(k, mean, color=style.colour, dashes=dashes, marker=".", linewidth=1.6, label=line.label)
        axes.fill_between(k, low, high, color=style.colour, alpha=0.08, linewidth=0)
    axes.set_xticks(range(1, len(lines[0].best) + 1))
    axes.set_xlabel("settings tried (k)")
    axes.set_ylabel("expected best validation accuracy, %")
