"""The mean difference of two rows over several environments (bases, data, models): for these environments, on average
over such environments, and for one more of them. Formulas and their reasons: docs/statistics.md.

x[b, s, p] is the difference in environment b under seed s on problem p; every environment has the same problems.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from tepo.evaluation.statistics.intervals import LEVEL, UNKNOWN, Estimate, crossed_variances, estimate, in_order

Cells = Mapping[str, np.ndarray]  # benchmark -> x [S, P]


@dataclass(frozen=True)
class OverEnvironments:
    """No intervals where an environment has one seed (these), or where there is one environment (average, one)."""

    by_environment: tuple[float, ...]  # the difference in each
    these: Estimate  # for other seeds and problems in the same environments
    average: Estimate  # over all environments of their kind, of which these are a sample
    one: tuple[float, float]  # ends of the 95% prediction interval of one more environment
    between: float  # standard deviation of the true differences; 0 where they differ no more than seeds make them


def over_environments(environments: Sequence[Cells], weights: Mapping[str, float] | None = None) -> OverEnvironments:
    """The difference over B environments of the same S seeds and problems. weights: as `estimate` takes them."""
    names, share = in_order(environments[0], weights)
    stacked = {name: np.stack([cells[name] for cells in environments]) for name in names}  # [B, S, P]
    by_run = sum(part * stacked[name].mean(axis=2) for part, name in zip(share, names, strict=True))  # [B, S]
    count, seeds = by_run.shape
    means = {name: x.mean(axis=1) for name, x in stacked.items()}  # environments in the place of seeds
    average = estimate(means, weights)
    if count == 1:  # the spread of problems alone would pass for that of environments
        average = Estimate(average.mean, math.nan, math.nan, math.nan, UNKNOWN)
    of_seeds = float(by_run.var(axis=1, ddof=1).mean()) / seeds if seeds > 1 else math.nan  # of an environment's mean
    of_problems, freedom, _ = crossed_variances([means[name] for name in names], share)
    noise = float(by_run.mean(axis=1).var(ddof=1)) - of_seeds if count > 1 and seeds > 1 else math.nan
    these = Estimate(average.mean, math.nan, math.nan, math.nan, UNKNOWN)
    if seeds > 1:  # pooled over the environments
        these = Estimate.of_variances(average.mean, of_seeds / count, count * (seeds - 1), of_problems, freedom)
    between = math.nan if math.isnan(noise) else max(noise, 0.0) ** 0.5
    by_environment = by_run.mean(axis=1)
    return OverEnvironments(tuple(by_environment.tolist()), these, average, predicted(by_environment), between)


def predicted(measured: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Ends of the interval that holds one more environment, measured like these on the same problems, in 95% of cases:
    Student's t with one degree of freedom less than environments, times the root of the variance between the measured
    differences and the squared error of their mean. NaN where there is one environment."""
    count = len(measured)
    if count < 2:
        return math.nan, math.nan
    mean = float(np.mean(measured))
    reach = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * (float(np.var(measured, ddof=1)) * (1 + 1 / count)) ** 0.5
    return mean - reach, mean + reach
