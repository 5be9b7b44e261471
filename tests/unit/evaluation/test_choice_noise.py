"""Noise of a choice by validation: against simulated truth, and what one seed leaves unknown."""

import math

import numpy as np
import pytest

from tepo.evaluation.statistics.choice_noise import lead


def test_the_errors_are_those_of_repeated_draws() -> None:
    """Settings with effects of their own on problems and on seeds: the spread of the lead over other problems, and over
    other seeds, is what the errors say on average."""
    random, leads = np.random.default_rng(1), []
    for _ in range(400):
        cells = [
            {
                name: 0.5
                + random.normal(0, 0.2, (1, size))
                + random.normal(0, 0.01, (3, 1)) * np.ones((1, size))
                + random.normal(0, 0.1, (3, size))
                for name, size in (("few", 40), ("many", 160))
            }
            for _ in range(2)
        ]
        leads.append(lead(*cells))
    alone = 2 * 0.1**2 / 3 * (1 / 40 + 1 / 160) / 4  # of single responses, which both hold
    by_problems = 2 * 0.2**2 * (1 / 40 + 1 / 160) / 4 + alone
    by_seeds = 2 * 0.01**2 / 3 / 2 + alone  # the seeds' effects on two benchmarks are drawn apart
    assert np.mean([one.by_problems**2 for one in leads]) == pytest.approx(by_problems, rel=0.05)
    assert np.mean([one.by_seeds**2 for one in leads]) == pytest.approx(by_seeds, rel=0.2)
    assert np.std([one.mean for one in leads]) ** 2 == pytest.approx(by_problems + by_seeds - alone, rel=0.2)


def test_benchmarks_count_alike_whatever_their_size() -> None:
    chosen, other = ({"a": np.full((2, 10), x), "b": np.full((2, 90), y)} for x, y in ((0.6, 0.4), (0.5, 0.5)))
    assert lead(chosen, other).mean == pytest.approx(0)


def test_one_seed_leaves_the_noise_of_seeds_unknown() -> None:
    one = lead({"a": np.array([[0.5, 1.0, 0.0]])}, {"a": np.array([[0.25, 0.5, 0.0]])})
    assert math.isnan(one.by_seeds)
    assert one.by_problems == pytest.approx(np.std([0.25, 0.5, 0], ddof=1) / 3**0.5)
