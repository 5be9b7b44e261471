"""Figures of a run's training by which claims compare runs of the same seed: how long it took, and how it was late.

Rows are those of `metrics.jsonl`, a mapping a step; a step may lack what a record does not keep of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tepo.common.text import counted
from tepo.evaluation.statistics.answer import NOTHING
from tepo.evaluation.statistics.intervals import Estimate, Tails

LATE = 0.25  # share of a run's steps, its last ones
_VALIDATIONS = 3  # of the running mean of scores
_WINDOW = 5  # steps of the running mean of reward and entropy
_LEVELS = 50  # of reward
_STEP = "training/global_step"
REALISED_KL = "actor/realised_kl_k3"  # how far the updates of a rollout take the policy
CLIPPED = "actor/pg_clipfrac"

Rows = Sequence[Mapping[str, Any]]


def late_mean(rows: Rows, metric: str) -> float:
    """Mean of a metric over the last quarter of the steps; NaN where none of them has it."""
    values = [row[metric] for row in rows if row[_STEP] > (1 - LATE) * len(rows) and row.get(metric) is not None]
    return float(np.mean(values)) if values else float("nan")


def log_mean(rows: Rows, metric: str) -> float:
    """Logarithm of a metric's mean over all steps, whose difference is a ratio; NaN where it has none above 0."""
    values = [row[metric] for row in rows if row.get(metric) is not None]
    return float(np.log(np.mean(values))) if values and np.mean(values) > 0 else float("nan")


def steps_to(rows: Rows, metric: str, threshold: float, planned: int) -> float:
    """Steps after which the running mean of a validated metric over three validations first reaches a threshold,
    between two of them linearly; infinite where it never does, also of a run that ended early by a collapse. NaN for
    fewer validations than the window has in a whole run.

    planned: steps that the run was to have."""
    measured = [(row[_STEP], row[metric]) for row in rows if row.get(metric) is not None]
    if len(measured) < _VALIDATIONS:
        return math.nan if len(rows) >= planned else math.inf
    kernel = np.full(_VALIDATIONS, 1 / _VALIDATIONS)
    steps, scores = (np.convolve(column, kernel, "valid") for column in np.array(measured, dtype=float).T)
    (reached,) = np.nonzero(scores >= threshold)
    if not len(reached):
        return math.inf
    first = reached[0]
    if first == 0:
        return float(steps[0])
    below, above = scores[first - 1], scores[first]
    return float(np.interp(threshold, [below, above], [steps[first - 1], steps[first]]))


def censored(a: Sequence[float], b: Sequence[float], planned: int) -> str:
    """Words for the steps that runs of A and of B take to a threshold, seed by seed, where some are infinite: how many
    never reach it within the planned steps, and what bounds their difference; empty where all do.

    Of a seed on which B alone arrives it is known that A takes at least the planned steps more than B; of one on which
    neither does, nothing."""
    never = [sum(map(math.isinf, steps)) for steps in (a, b)]
    if not any(never):
        return ""
    who = [
        f"{f'all {count}' if count == len(a) else f'{count} of {len(a)}'} runs of {side}"
        for count, side in zip(never, "AB", strict=True)
        if count
    ]
    word, side, arrives = ("at least", "B", b) if never[0] >= never[1] else ("at most", "A", a)
    ends = [[planned if math.isinf(step) else step for step in steps] for steps in (a, b)]
    gaps = [x - y for x, y, arrival in zip(*ends, arrives, strict=True) if math.isfinite(arrival)]
    bound = f", {word} {np.mean(gaps):+.0f}".replace("-", "−") if gaps else ""
    seeds = f" over the {counted(len(gaps), 'seed')} on which {side} does" if 0 < len(gaps) < len(a) else ""
    return f"{' and '.join(who)} never reach it: no difference in steps can be stated{bound}{seeds}"


def entropy_gap(a: np.ndarray, b: np.ndarray) -> float:
    """Mean entropy of run a minus that of run b at equal reward, nats per token; NaN where no reward is common to both.

    A method that learns faster has less entropy at the same step without being the worse for it. Both series are
    smoothed by a running mean; at each level of reward that both runs cross, each has the entropy at its first
    crossing. a, b: [T, 2], reward and entropy of each step; both of the policy that drew the step's responses."""
    smooth = []
    for run in (a, b):
        width = min(_WINDOW, len(run))
        smooth.append(np.stack([np.convolve(column, np.full(width, 1 / width), "valid") for column in run.T], axis=-1))
    low = max(run[0, 0] for run in smooth)
    high = min(run[:, 0].max() for run in smooth)
    if not low < high:
        return float("nan")
    levels = np.linspace(low, high, _LEVELS)
    entropies = []
    for run in smooth:  # at the first crossing of each level, between two steps linearly
        highest = np.maximum.accumulate(run[:, 0])
        rising = np.flatnonzero(np.r_[True, highest[1:] > highest[:-1]])  # a new highest reward
        entropies.append(np.interp(levels, highest[rising], run[rising, 1]))
    return float((entropies[0] - entropies[1]).mean())


def estimate_gaps(gaps: Sequence[float]) -> Estimate:
    """The gap over pairs of runs with the same seed: its mean, and Student's t over the seeds. Seeds without a gap
    (NaN) do not count; fewer than two others give no interval."""
    measured_gaps = np.array([gap for gap in gaps if not np.isnan(gap)])
    if len(measured_gaps) < 2:
        return replace(NOTHING, mean=float(measured_gaps.mean())) if len(measured_gaps) else NOTHING
    error = float(measured_gaps.std(ddof=1) / len(measured_gaps) ** 0.5)
    return Estimate.symmetric(float(measured_gaps.mean()), error, Tails(float("inf"), len(measured_gaps) - 1, 1.0))
