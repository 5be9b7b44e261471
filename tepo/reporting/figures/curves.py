"""Training curves with seed bands, as matplotlib figures (no display, no global state): the axes that they are drawn
over, and long curves with fewer points."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tepo.common.files import STORE, write_atomic
from tepo.common.text import spelt
from tepo.reporting.colours import Look, look

STEP = "training/global_step"
SAMPLES, KL = "training/responses", "actor/realised_kl_k3"
AXES = {
    "steps": "training step",
    "samples": "responses drawn",
    "tokens": "tokens sampled",
    "time": "wall time of the steps (seconds)",
    "kl": "realised KL of the rollouts, summed (nats per token)",
}
SUMMED = {"tokens": "perf/sampled_tokens", "time": "timing_s/step", "kl": KL}
"""Axes that are the sum of a metric over the steps."""
_COUNTED = (STEP, SAMPLES)  # from the start of the run
STYLE: dict[Any, Any] = {
    **{name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"},
    "text.parse_math": False,  # labels are names that people give: a $ is a $
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: searchable, small
    "svg.hashsalt": "tepo",  # the same figure gives the same file
}

LINK_INCHES, LINK_DPI = (12.0, 6.3), 100
"""1200 x 630 pixels: the size of the picture that a link shows."""


@dataclass(frozen=True)
class RunCurves:
    """Metrics of one run: one mapping per step under verl's names (`critic/score/mean`, `actor/entropy` …), as in
    metrics.jsonl."""

    label: str
    method: str
    seed: int
    rows: Sequence[Mapping[str, Any]]
    look: Look | None = None  # the row's own in its study; None: its method's
    ended: bool = False  # before its last step: it collapsed, was saturated or diverged


@dataclass(frozen=True)
class Panel:
    """One pair of axes: the metric over training steps. scale: factor for display (100 for percent)."""

    metric: str
    title: str
    unit: str = ""
    scale: float = 1.0


TRAINING_PANELS = (
    Panel("critic/score/mean", "Reward", "% right", 100),
    Panel("actor/entropy", "Entropy", "nats per token"),
    Panel("actor/pg_clipfrac", "Clip fraction", "% of tokens", 100),
    Panel("actor/grad_norm", "Gradient norm"),
    Panel("response_length/mean", "Response length", "tokens"),
)


def positions(rows: Sequence[Mapping[str, Any]], against: str) -> dict[float, float]:
    """Step -> position of its point on the axis. rows: of metrics.jsonl; those before a step count in a sum. Empty
    where the rows do not hold what the axis needs."""
    steps = [float(row.get(STEP, index)) for index, row in enumerate(rows, start=1)]
    if against == "steps":
        return dict(zip(steps, steps, strict=True))
    metric = SUMMED.get(against, SAMPLES)
    if not all(metric in row for row in rows):
        return {}
    values = [float(row[metric]) for row in rows]
    return dict(zip(steps, accumulate(values) if against in SUMMED else values, strict=True))


def thinned(runs: Sequence[RunCurves], points: int) -> list[RunCurves]:
    """The runs with at most `points` rows each: neighbouring steps, the same ones in every run, become one, at the last
    of them. Its metrics are means over the steps; what an axis sums is summed. Unchanged where no run has more."""
    longest = max((len(run.rows) for run in runs), default=0)
    width = -(-longest // points)
    if width <= 1:
        return list(runs)
    return [
        replace(run, rows=[_joined(run.rows[start : start + width]) for start in range(0, len(run.rows), width)])
        for run in runs
    ]


def _joined(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    columns = {
        name: [float(value) for row in rows if isinstance(value := row.get(name), int | float) and np.isfinite(value)]
        for name in dict.fromkeys(name for row in rows for name in row)
    }
    return {name: _one(name, values, len(rows)) for name, values in columns.items() if values}


def _one(name: str, values: Sequence[float], rows: int) -> float:
    if name in _COUNTED:
        return values[-1]
    mean = sum(values) / len(values)
    return mean * rows if name in SUMMED.values() else mean


def line_style(style: Look) -> dict[str, Any]:
    """Arguments of matplotlib's `plot`."""
    return {"color": style.colour, "dashes": style.dash or (None, None)}


def series(run: RunCurves, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a metric; steps where it is missing or not finite are left out."""
    points = [(row.get(STEP, index), row.get(metric)) for index, row in enumerate(run.rows, start=1)]
    kept = [
        (float(step), float(value)) for step, value in points if isinstance(value, (int, float)) and np.isfinite(value)
    ]
    steps, values = zip(*kept, strict=True) if kept else ((), ())
    return np.array(steps), np.array(values)


def seed_band(runs: Iterable[RunCurves], metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps, mean, lowest and highest value over the seeds, at the steps that every seed with data has."""
    curves = [dict(zip(*map(np.ndarray.tolist, series(run, metric)), strict=True)) for run in runs]
    curves = [values for values in curves if values]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    values = np.array([[curve[step] for step in steps] for curve in curves]).reshape(len(curves), len(steps))
    if not steps:
        return (np.array([]),) * 4
    return np.array(steps), values.mean(axis=0), values.min(axis=0), values.max(axis=0)


def by_label(runs: Iterable[RunCurves]) -> dict[str, list[RunCurves]]:
    """Runs of one label (the seeds of a row) together, in order of appearance."""
    groups: dict[str, list[RunCurves]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def draw(axes: Axes, runs: Sequence[RunCurves], panel: Panel, against: str = "steps") -> None:
    """Mean over seeds as a line, lowest to highest seed as a band, a cross at the last step of a run that ended early.

    against: one of AXES; a point lies at the mean of the seeds' positions."""
    groups = by_label(runs)
    for label, seeds in groups.items():
        points, mean, low, high = seed_band(seeds, panel.metric)
        every = [positions(run.rows, against) for run in seeds if run.rows]
        known = np.array([all(step in one for one in every) for step in points], dtype=bool)
        mean, low, high = mean[known], low[known], high[known]
        steps = np.array([np.mean([one[step] for one in every]) for step in points[known]])
        style = seeds[0].look or look(seeds[0].method)
        axes.plot(steps, panel.scale * mean, linewidth=1.6, label=label, **line_style(style))
        if len(seeds) > 1:
            axes.fill_between(steps, panel.scale * low, panel.scale * high, color=style.colour, alpha=0.15, linewidth=0)
        for run in seeds if any(every) else ():
            ends, values = series(run, panel.metric)
            if run.ended and ends.size:
                at = positions(run.rows, against)[ends[-1]]
                axes.plot([at], [panel.scale * values[-1]], marker="X", markersize=6, color=style.colour)
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.set_ylabel(panel.unit)
    axes.set_xlabel(AXES[against])
    axes.margins(x=0.01)


def training_figure(
    runs: Sequence[RunCurves], panels: Sequence[Panel] = TRAINING_PANELS, columns: int = 3, against: str = "steps"
) -> Figure:
    """One pair of axes per panel that any run has data for, one legend for all. against: one of AXES.

    The band spans the seeds, lowest to highest.
    """
    shown = [panel for panel in panels if any(series(run, panel.metric)[0].size for run in runs)]
    columns = max(1, min(columns, len(shown)))
    lines = max(1, -(-len(shown) // columns))
    labels = list(by_label(runs)) if shown else []
    width = 3.6 * columns
    per_line = max(1, min(len(labels), int(width / (0.6 + 0.07 * max(map(len, labels), default=0)))))
    legend = 0.3 + 0.2 * -(-len(labels) // per_line)
    height = 2.5 * lines + legend
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        # margins and gaps in inches: a layout engine would draw everything once more to find them
        inner_width, inner_height = (
            (3.6 * columns - 0.75 - 0.75 * (columns - 1)) / columns,
            (2.5 * lines - 0.8 - 0.8 * (lines - 1)) / lines,
        )
        figure.subplots_adjust(
            left=0.65 / width,
            right=1 - 0.1 / width,
            top=1 - 0.3 / height,
            bottom=(legend + 0.5) / height,
            wspace=0.75 / inner_width,
            hspace=0.8 / inner_height,
        )
        for index, panel in enumerate(shown):
            draw(figure.add_subplot(lines, columns, index + 1), runs, panel, against)
        if shown:
            handles, names = figure.axes[0].get_legend_handles_labels()
            figure.legend(
                handles, names, loc="lower center", ncols=per_line, fontsize=8, bbox_to_anchor=(0.5, 0.05 / height)
            )
        return figure


def settled(figure: Figure) -> Figure:
    """The figure with its layout fixed: otherwise every save moves the axes a little and no two files are equal."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def svg(figure: Figure) -> str:
    """The figure as SVG text: the same figure gives the same bytes."""
    out = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return spelt(out.getvalue())  # XML has no control characters


def png(figure: Figure, dpi: int) -> bytes:
    """The figure as a PNG image of this many pixels an inch."""
    image = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(image, format="png", dpi=dpi)
    return image.getvalue()


def save(figure: Figure, folder: Path, name: str, option: str = STORE) -> list[Path]:
    """Write `name.svg` and `name.png` (144 dpi) into the folder, each by rename; returns both paths.

    option: see `write_atomic`.
    """
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    write_atomic(paths[0], svg(figure), option)
    write_atomic(paths[1], png(figure, 144), option)
    return paths
