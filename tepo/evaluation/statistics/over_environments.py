"""The mean difference of two rows over several environments (bases, data, models) with two 95% intervals: for these
environments, and for a new one of their kind. Formulas and their reasons: docs/evaluation.md.

x[b, s, p] is the difference in environment b under seed s on problem p; every environment has the same problems.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tepo.evaluation.statistics.intervals import DRAWS, UNKNOWN, Estimate, Tails, crossed_variances, estimate

Cells = Mapping[str, np.ndarray]  # benchmark -> x [S, P]


@dataclass(frozen=True)
class OverEnvironments:
    """these: other seeds and problems in the same environments. new: also another environment. between: standard
    deviation of the true differences over environments; 0 where the measured ones differ no more than seeds make them.
    No intervals where an environment has one seed (these), or where there is one environment (new)."""

    these: Estimate
    new: Estimate
    between: float


def over_environments(
    environments: Sequence[Cells], weights: Mapping[str, float] | None = None, *, draws: int = DRAWS, seed: int = 0
) -> OverEnvironments:
    """The difference over B environments of the same S seeds and problems. weights: as `estimate` takes them."""
    names = sorted(environments[0])
    stacked = {name: np.stack([cells[name] for cells in environments]) for name in names}  # [B, S, P]
    share = np.array([1.0 if weights is None else weights[name] for name in names])
    share = share / share.sum()
    by_run = sum(part * stacked[name].mean(axis=2) for part, name in zip(share, names, strict=True))  # [B, S]
    count, seeds = by_run.shape
    means = {name: x.mean(axis=1) for name, x in stacked.items()}  # environments in the place of seeds
    new = estimate(means, weights, draws=draws, seed=seed)
    if count == 1:  # the spread of problems alone would pass for that of environments
        new = Estimate(new.mean, math.nan, math.nan, math.nan, UNKNOWN)
    of_seeds = float(by_run.var(axis=1, ddof=1).mean()) / seeds if seeds > 1 else math.nan  # of an environment's mean
    over = crossed_variances([means[name] for name in names], share)
    noise = float(by_run.mean(axis=1).var(ddof=1)) - of_seeds if count > 1 and seeds > 1 else math.nan
    these = _these(new.mean, of_seeds / count, count * (seeds - 1), over.problems, over.freedom)
    return OverEnvironments(these, new, math.nan if math.isnan(noise) else max(noise, 0.0) ** 0.5)


def _these(mean: float, of_seeds: float, freedom: int, of_problems: float, problems: float) -> Estimate:
    """Estimate with the variances by seeds, pooled over the environments, and by problems."""
    total = of_seeds + of_problems
    if math.isnan(total):
        return Estimate(mean, math.nan, math.nan, math.nan, UNKNOWN)
    return Estimate.symmetric(mean, total**0.5, Tails(problems, freedom, of_seeds / total if total else 0.0))
