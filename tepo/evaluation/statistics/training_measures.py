"""Figures of a run's training by which claims compare runs of the same seed: how long it took, and how it was late.

Rows are those of `metrics.jsonl`, a mapping a step; a step may lack what a record does not keep of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tepo.evaluation.statistics.comparison import Difference
from tepo.evaluation.statistics.intervals import LEVEL, Tails

LATE = 0.25  # share of a run's steps, its last ones
WINDOW = 3  # validations of the running mean
_STEP = "training/global_step"

Rows = Sequence[Mapping[str, Any]]


def late_mean(rows: Rows, metric: str) -> float:
    """Mean of a metric over the last quarter of the steps; NaN where none of them has it."""
    values = [row[metric] for row in rows if row[_STEP] > (1 - LATE) * len(rows) and row.get(metric) is not None]
    return float(np.mean(values)) if values else float("nan")


def steps_to(rows: Rows, metric: str, threshold: float) -> float:
    """Steps after which the running mean of a validated metric over `WINDOW` validations first reaches a threshold,
    between two of them linearly; all of the steps where it never does, so that the longer run is not made shorter.
    NaN for fewer validations than the window has."""
    measured = [(row[_STEP], row[metric]) for row in rows if row.get(metric) is not None]
    if len(measured) < WINDOW:
        return float("nan")
    kernel = np.full(WINDOW, 1 / WINDOW)
    steps, scores = (np.convolve(column, kernel, "valid") for column in np.array(measured, dtype=float).T)
    (reached,) = np.nonzero(scores >= threshold)
    if not len(reached):
        return float(len(rows))
    first = reached[0]
    if first == 0:
        return float(steps[0])
    below, above = scores[first - 1], scores[first]
    return float(np.interp(threshold, [below, above], [steps[first - 1], steps[first]]))


def paired_difference(row: str, measure: str, gaps: Sequence[float]) -> Difference:
    """The gap over pairs of runs with the same seed: its mean, and Student's t over the seeds. Seeds without a gap
    (NaN) do not count; fewer than two others give no interval."""
    known = np.array([gap for gap in gaps if not np.isnan(gap)])
    seeds = len(known)
    if seeds < 2:
        return Difference(row, measure, float(known.mean()) if seeds else float("nan"), seeds=seeds)
    mean, error = float(known.mean()), float(known.std(ddof=1) / seeds**0.5)
    tails = Tails(float("inf"), seeds - 1, 1.0)
    half = float(tails.quantile((1 + LEVEL) / 2)) * error
    p = float(2 * tails.below(-abs(mean) / error)) if error else float(mean == 0)
    return Difference(row, measure, mean, mean - half, mean + half, half, p, seeds=seeds, error=error, tails=tails)
