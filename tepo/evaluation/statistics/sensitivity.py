"""Dependence of a method's score on a setting.

Adkins, Bowling and White 2024 (arXiv 2412.07165): sensitivity is what is lost when one setting must serve all
environments, where each could have its own,

    mean over e of max over h of p(e, h)  -  max over h of mean over e of p(e, h),

with p(e, h) the mean score in environment e at setting h. In a single environment that is 0. Beside it stands what a
setting drawn blindly from the grid loses: mean over e of (max over h of p(e, h) - mean over h of p(e, h)).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tepo.evaluation.statistics.intervals import central

_DRAWS = 2000

Scores = Mapping[str, Mapping[str, np.ndarray]]  # environment -> setting -> score of each seed [S]


@dataclass(frozen=True)
class Interval:
    """A figure in shares with its interval from the bootstrap over seeds; NaN ends where a setting has one seed."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Sensitivity:
    """best: with each environment at its own best setting. lost: by a setting drawn blindly from the grid.
    one_for_all: what one setting for all environments loses. means: each setting's, over the environments."""

    best: Interval
    lost: Interval
    one_for_all: Interval
    means: dict[str, float]

    def within(self, points: float) -> list[str]:
        """The settings whose mean is at most so many points below the best one's."""
        highest = max(self.means.values())
        return [name for name, mean in self.means.items() if 100 * (highest - mean) <= points]


def sensitivity(scores: Scores) -> Sensitivity:
    """Sensitivity to a setting from scores at the same settings in every environment. Each draw of the bootstrap draws
    the seeds of each cell and looks for the best setting among them, with deviations widened by n / (n - 1) as few
    seeds need. It describes; it tests nothing."""
    settings = list(next(iter(scores.values())))
    cells = [[scores[environment][setting] for setting in settings] for environment in scores]
    means = np.array([[values.mean() for values in row] for row in cells])  # [E, H]
    drawn = np.stack([np.stack([_redrawn(values, at) for at, values in enumerate(row)], -1) for row in cells], -2)
    known = min(len(values) for row in cells for values in row) > 1
    figures = []
    for value, spread in zip(_figures(means), _figures(drawn), strict=True):
        low, high = central(spread) if known else (np.nan, np.nan)
        figures.append(Interval(float(value), float(low), float(high)))
    best, lost, one_for_all = figures
    return Sensitivity(best, lost, one_for_all, dict(zip(settings, means.mean(axis=0).tolist(), strict=True)))


def _figures(p: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The best, what a blind draw loses and what one setting for all loses, of p [..., E, H]."""
    best = p.max(axis=-1).mean(axis=-1)
    return best, (p.max(axis=-1) - p.mean(axis=-1)).mean(axis=-1), best - p.mean(axis=-2).max(axis=-1)


def _redrawn(values: np.ndarray, stream: int) -> np.ndarray:
    """Means [_DRAWS] of seeds drawn with replacement from values [S]."""
    seeds = len(values)
    random = np.random.default_rng([stream, seeds])
    means = values[random.integers(0, seeds, (_DRAWS, seeds))].mean(axis=1)
    return values.mean() + (means - values.mean()) * (seeds / max(seeds - 1, 1)) ** 0.5
