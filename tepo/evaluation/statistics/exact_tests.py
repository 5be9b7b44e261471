"""Exact tests of two rows that assume no distribution of luck: they enumerate what chance could have done to the runs.

The runs are the sample, the problems are given. Runs lie along the last axis, so many studies are tested at once. A p
is at least one over the number of arrangements (`smallest_sign_flip_p`, `smallest_exchange_p`). docs/evaluation.md says
how these tests and that of the interval hold their level."""

import functools
from itertools import combinations
from math import comb
from typing import Literal

import numpy as np

MOST = 200_000  # arrangements that are enumerated; of more, as many are drawn at random, from a fixed seed
Alternative = Literal["two-sided", "less", "greater"]


def sign_flip_p(differences: np.ndarray, about: float = 0.0, alternative: Alternative = "two-sided") -> np.ndarray:
    """p of "each seed's difference [..., S] is symmetric about `about`", by flipping the signs of all sets of seeds
    (Fisher 1935): the share of flips whose mean is as far off. `less` is evidence that the differences lie below it.

    It holds whatever the luck of the two rows is, if it is the same: then a difference is symmetric. Equal means alone
    do not make it so."""
    moved = np.asarray(differences, dtype=float) - about
    return _share(moved, _flips(moved.shape[-1]), alternative)


def exchange_p(
    runs: np.ndarray, others: np.ndarray, about: float = 0.0, alternative: Alternative = "two-sided"
) -> np.ndarray:
    """p of "the scores of the runs [..., N] and of the others [..., M], raised by `about`, have one distribution", by
    dealing all of them anew (Pitman 1937): the share of deals whose difference in means is as far off.

    It is exact as `sign_flip_p` is. It does not pair runs by seed, and so reaches a far smaller p."""
    first, second = np.asarray(runs, dtype=float) - about, np.asarray(others, dtype=float)
    pooled = np.concatenate([first, second], axis=-1)
    centred = pooled - pooled.mean(axis=-1, keepdims=True)  # the sum of the runs then says all
    return _share(centred, _deals(first.shape[-1], second.shape[-1]), alternative)


def smallest_sign_flip_p(seeds: int) -> float:
    """The smallest two-sided p that so many seeds can give: 0.0078 for eight."""
    return 2 / min(2**seeds, MOST)


def smallest_exchange_p(runs: int, others: int) -> float:
    """The smallest two-sided p that so many runs of two rows can give: 0.00016 for eight and eight."""
    return 2 / min(comb(runs + others, runs), MOST)


def _share(values: np.ndarray, arrangements: np.ndarray, alternative: Alternative) -> np.ndarray:
    """p of the sum under the first arrangement, the one that was seen. Sums that differ by rounding are tied."""
    sums = values @ arrangements
    slack = 1e-9 * np.abs(values).sum(axis=-1, keepdims=True)
    seen = sums[..., :1]
    if alternative == "less":
        return np.mean(sums <= seen + slack, axis=-1)
    if alternative == "greater":
        return np.mean(sums >= seen - slack, axis=-1)
    return np.mean(np.abs(sums) >= np.abs(seen) - slack, axis=-1)


@functools.lru_cache(maxsize=4)
def _flips(seeds: int) -> np.ndarray:
    """Signs [S, arrangements], none flipped first."""
    if 2**seeds > MOST:
        signs = np.random.default_rng(0).choice([1.0, -1.0], (seeds, MOST))
        signs[:, 0] = 1
        return signs
    return 1 - 2.0 * ((np.arange(2**seeds) >> np.arange(seeds)[:, None]) & 1)


@functools.lru_cache(maxsize=4)
def _deals(runs: int, others: int) -> np.ndarray:
    """Runs that the first row is dealt, as 0 and 1 [N + M, arrangements], those it had first."""
    total = runs + others
    if comb(total, runs) > MOST:
        dealt = np.random.default_rng(0).permuted(np.tile(np.arange(total) < runs, (MOST, 1)), axis=1)
        dealt[0] = np.arange(total) < runs
        return dealt.T.astype(float)
    dealt = np.zeros((total, comb(total, runs)))
    for column, chosen in enumerate(combinations(range(total), runs)):
        dealt[list(chosen), column] = 1
    return dealt
