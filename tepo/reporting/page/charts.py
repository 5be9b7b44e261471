"""Data of the page's interactive curves: for each row of a figure the mean over its seeds, the lowest and the highest
seed, and where its steps lie on each axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tepo.reporting.colours import look
from tepo.reporting.figures.curves import (
    AXES,
    TRAINING_PANELS,
    Panel,
    RunCurves,
    by_label,
    positions,
    seed_band,
    series,
)


def chart_data(runs: Sequence[RunCurves], panels: Sequence[Panel] = TRAINING_PANELS) -> dict[str, Any]:
    """A value for JSON. panels and axes: those for which some run has data."""
    shown = [panel for panel in panels if any(series(run, panel.metric)[0].size for run in runs)]
    rows = [_row(label, seeds, shown) for label, seeds in by_label(runs).items()]
    return {
        "panels": [{"title": panel.title, "unit": panel.unit} for panel in shown],
        "axes": [[name, title] for name, title in AXES.items() if any(name in row["at"] for row in rows)],
        "rows": rows,
    }


def _row(label: str, runs: Sequence[RunCurves], panels: Sequence[Panel]) -> dict[str, Any]:
    """at: axis -> [S], the mean of the seeds' positions at each of the S steps that all seeds have. curves: of each
    panel [S] means, and with several seeds [S] lowest and highest values. ends: of each seed that ended early, its last
    position on each axis and its last value in each panel."""
    known = [run for run in runs if run.rows]
    style = runs[0].look or look(runs[0].method)
    steps = sorted(set.intersection(*(set(positions(run.rows, "steps")) for run in known))) if known else []
    places = {axis: [positions(run.rows, axis) for run in known] for axis in AXES}
    return {
        "label": label,
        "colour": style.colour,
        "dash": style.dash,
        "seeds": len(known),
        "at": {
            axis: [_short(float(np.mean([one[step] for one in every])), 6) for step in steps]
            for axis, every in places.items()
            if every and all(every)
        },
        "curves": [_curve(known, panel, steps) for panel in panels],
        "ends": [_end(run, panels) for run in known if run.ended],
    }


def _curve(runs: Sequence[RunCurves], panel: Panel, steps: Sequence[float]) -> dict[str, list[float | None]]:
    points, mean, low, high = seed_band(runs, panel.metric)
    band = {"low": low, "high": high} if len(runs) > 1 else {}
    columns = {
        name: dict(zip(points, panel.scale * column, strict=True)) for name, column in {"mean": mean, **band}.items()
    }
    return {name: [_short(column.get(step)) for step in steps] for name, column in columns.items()}


def _end(run: RunCurves, panels: Sequence[Panel]) -> dict[str, Any]:
    values = [series(run, panel.metric)[1] for panel in panels]
    places = {axis: positions(run.rows, axis) for axis in AXES}
    return {
        "seed": run.seed,
        "at": {axis: _short(max(where.values()), 6) for axis, where in places.items() if where},
        "values": [
            _short(panel.scale * float(own[-1])) if own.size else None
            for panel, own in zip(panels, values, strict=True)
        ],
    }


def _short(number: float | None, digits: int = 4) -> float | None:
    """Few digits, as an integer where it is one: more are not seen."""
    if number is None:
        return None
    short = float(f"{number:.{digits}g}")
    return int(short) if short.is_integer() else short
