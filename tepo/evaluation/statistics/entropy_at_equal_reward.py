"""Entropy at equal reward: whether a policy is less certain where it is right as often.

A method that learns faster has less entropy at the same step without being the worse for it, so entropies are compared
at the same reward. Both series are smoothed by a running mean; at each level of reward that both runs cross, each has
the entropy at its first crossing."""

import numpy as np

WINDOW = 5  # steps of the running mean
_LEVELS = 50


def entropy_gap(a: np.ndarray, b: np.ndarray) -> float:
    """Mean entropy of run a minus that of run b at equal reward, nats per token; NaN where no reward is common to both.
    a, b: [T, 2], reward and entropy of each step; both of the policy that drew the step's responses."""
    smooth = []
    for run in (a, b):
        width = min(WINDOW, len(run))
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
