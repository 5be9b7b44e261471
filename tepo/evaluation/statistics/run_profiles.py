"""Runs beside means: the probability that a run of one row beats a run of another, and performance profiles. Agarwal et
al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv 2108.13264; rliable).

A task is a benchmark, a score the accuracy of a run on it: scores [runs, tasks], in shares. Tasks are fixed and count
alike. Intervals are a percentile bootstrap over runs. A run is drawn with its scores on all tasks, since one training
made them; rliable draws the runs of each task apart, as of one training a task. n - 1 of n are drawn, as in
`tepo.evaluation.statistics.intervals`. They describe; no verdict is made of them."""

from dataclasses import dataclass

import numpy as np

from tepo.evaluation.statistics.intervals import DRAWS, central


@dataclass(frozen=True)
class Improvement:
    """P(X > Y) with its 95% interval, whose ends are NaN where a row has one run."""

    value: float
    low: float
    high: float


def probability_of_improvement(scores: np.ndarray, others: np.ndarray, *, draws: int = DRAWS) -> Improvement:
    """Probability that a run of scores [N, M] is above a run of others [K, M], the mean over tasks:

        1 / (M N K) sum over tasks m and runs i, j of (1 where x_im > y_jm, 1/2 where they tie).

    Where no runs overlap it is 0 or 1 in every draw, and so are the ends of its interval."""
    x, y = scores[:, None], others[None]
    wins = ((x > y) + 0.5 * (x == y)).mean(axis=-1)  # [N, K]
    if min(wins.shape) < 2:
        return Improvement(float(wins.mean()), float("nan"), float("nan"))
    random = np.random.default_rng(0)
    drawn = [_drawn(runs, draws, random) for runs in wins.shape]
    low, high = central(np.einsum("dn,nk,dk->d", drawn[0], wins, drawn[1]))
    return Improvement(float(wins.mean()), float(low), float(high))


@dataclass(frozen=True)
class Profile:
    """Share [T] of scores above each threshold, with pointwise 95% bands; NaN bands of a single run."""

    share: np.ndarray
    low: np.ndarray
    high: np.ndarray


def performance_profile(scores: np.ndarray, thresholds: np.ndarray, *, draws: int = DRAWS) -> Profile:
    """Share of the scores [N, M], of every run on every task, above each threshold [T]."""
    above = (scores[..., None] > thresholds).mean(axis=1)  # [N, T]
    share = above.mean(axis=0)
    if len(scores) < 2:
        return Profile(share, np.full_like(share, np.nan), np.full_like(share, np.nan))
    low, high = central(_drawn(len(scores), draws, np.random.default_rng(0)) @ above)
    return Profile(share, low, high)


def _drawn(runs: int, draws: int, random: np.random.Generator) -> np.ndarray:
    """Weights [draws, runs] of the runs, drawn with replacement, n - 1 of n."""
    return random.multinomial(runs - 1, [1 / runs] * runs, draws) / (runs - 1)
