"""Data of the page's curves: of each row of a figure every seed's values, and where its steps lie on each axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tepo.reporting.colours import look
from tepo.reporting.figures.curves import AXES, TRAINING_PANELS, Panel, RunCurves, by_label, positions, series

_FEW = 6  # rows that can be told apart: of more, the baseline and two extremes have their colours and the rest is grey
_FLAT = 8.0  # a row this many times the middle one's peak flattens the others on a linear axis


def chart_data(runs: Sequence[RunCurves], panels: Sequence[Panel] = TRAINING_PANELS, baseline: str = "") -> Any:
    """A value for JSON. panels and axes: those for which some run has data. A panel is logarithmic (`log`) where one
    row would flatten the others. lifted: indices of the rows that keep their colours among many, none for few rows: the
    one labelled `baseline`, and the rows that end highest and lowest in the first panel."""
    shown = [panel for panel in panels if any(series(run, panel.metric)[0].size for run in runs)]
    rows = [_row(label, seeds, shown) for label, seeds in by_label(runs).items()]
    return {
        "panels": [
            {"title": panel.title, "unit": panel.unit, "log": _one_flattens(rows, index)}
            for index, panel in enumerate(shown)
        ],
        "axes": [[name, title] for name, title in AXES.items() if any(name in row["at"] for row in rows)],
        "rows": rows,
        "lifted": _lifted(rows, baseline) if len(rows) > _FEW and shown else [],
    }


def means(row: dict[str, Any], panel: int) -> list[tuple[int, float]]:
    """The mean of a row in a panel, at those of its steps that every seed with data has: index of the step, value."""
    seeds = [values for values in row["curves"][panel] if any(value is not None for value in values)]
    columns = enumerate(zip(*seeds, strict=True))
    return [(index, sum(column) / len(column)) for index, column in columns if None not in column]


def _row(label: str, runs: Sequence[RunCurves], panels: Sequence[Panel]) -> dict[str, Any]:
    """at: axis -> [S], the mean of the positions of the seeds that have the step, at each of the S steps of any seed.
    curves: of each panel and seed [S] values, None where the seed has none. ends: of each seed that ended early, its
    last position on each axis and its last value in each panel."""
    known = [run for run in runs if run.rows]
    style = runs[0].look or look(runs[0].method)
    places = {axis: [positions(run.rows, axis) for run in known] for axis in AXES}
    steps = sorted(set().union(*places["steps"]))
    return {
        "label": label,
        "colour": style.colour,
        "dash": style.dash,
        "seeds": [run.seed for run in known],
        "at": {
            axis: [_short(float(np.mean([one[step] for one in every if step in one])), 4) for step in steps]
            for axis, every in places.items()
            if every and all(every)
        },
        "curves": [[_curve(run, panel, steps) for run in known] for panel in panels],
        "ends": [_end(run, panels) for run in known if run.ended],
    }


def _curve(run: RunCurves, panel: Panel, steps: Sequence[float]) -> list[float | None]:
    known = dict(zip(*series(run, panel.metric), strict=True))
    return [_short(panel.scale * known[step]) if step in known else None for step in steps]


def _end(run: RunCurves, panels: Sequence[Panel]) -> dict[str, Any]:
    values = [series(run, panel.metric)[1] for panel in panels]
    places = {axis: positions(run.rows, axis) for axis in AXES}
    return {
        "seed": run.seed,
        "at": {axis: _short(max(where.values()), 4) for axis, where in places.items() if where},
        "values": [
            _short(panel.scale * float(own[-1])) if own.size else None
            for panel, own in zip(panels, values, strict=True)
        ],
    }


def _one_flattens(rows: Sequence[dict[str, Any]], panel: int) -> bool:
    values = [[value for _, value in means(row, panel)] for row in rows]
    peaks = sorted(max(own) for own in values if own)
    every = [value for own in values for value in own]
    return len(peaks) > 2 and min(every) > 0 and peaks[-1] > _FLAT * peaks[(len(peaks) - 1) // 2]


def _lifted(rows: Sequence[dict[str, Any]], baseline: str) -> list[int]:
    last = {index: own[-1][1] for index, row in enumerate(rows) if (own := means(row, 0))}
    extremes = [max(last, key=last.__getitem__), min(last, key=last.__getitem__)] if last else []
    named = [index for index, row in enumerate(rows) if row["label"] == baseline]
    return sorted({*named, *extremes})


def _short(number: float, digits: int = 3) -> float:
    """Few digits, as an integer where it is one: more are not seen."""
    short = float(f"{number:.{digits}g}")
    return int(short) if short.is_integer() else short
