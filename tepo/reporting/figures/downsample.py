"""Long curves with fewer points, for a page that must stay small."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tepo.reporting.figures.curves import RunCurves
from tepo.reporting.figures.x_axes import SAMPLES, STEP, SUMMED

_LAST = (STEP, SAMPLES)  # they count from the start of the run


def thinned(runs: Sequence[RunCurves], points: int) -> list[RunCurves]:
    """The runs with at most `points` rows each: neighbouring steps become one, at the last of them.

    Its metrics are means over the steps, what an axis sums is summed (`x_axes`). The same steps are
    joined in every run. Returned as they are where the longest run has no more."""
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
    if name in _LAST:
        return values[-1]
    mean = sum(values) / len(values)
    return mean * rows if name in SUMMED.values() else mean
