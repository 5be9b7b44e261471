"""Noise of a choice by validation: how far the lead of what was chosen over the runner-up may be luck."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tepo.evaluation.statistics.intervals import crossed_variances

Cells = Mapping[str, np.ndarray]
"""benchmark -> share of right responses [seeds, problems]"""


@dataclass(frozen=True)
class Lead:
    """A difference of two validation scores and its standard errors, shares: by which problems were asked, and by the
    tuning seeds, NaN where there is one."""

    mean: float
    by_problems: float
    by_seeds: float


def lead(chosen: Cells, other: Cells) -> Lead:
    """The lead of one setting over another on the same seeds and problems, each benchmark counted once. Either error
    holds the noise of single responses."""
    differences = [chosen[name] - other[name] for name in sorted(chosen)]
    parts = crossed_variances(differences, np.full(len(differences), 1 / len(differences)))
    mean = float(np.mean([one.mean() for one in differences]))
    return Lead(mean, math.sqrt(parts.problems), math.sqrt(parts.seeds))
