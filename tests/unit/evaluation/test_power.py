from dataclasses import replace

import numpy as np
import pytest

from tepo.evaluation.statistics.intervals import estimate
from tepo.evaluation.statistics.power import POWER, Spread, found_from, pooled, seeds_needed, smallest, spread_of

pytestmark = pytest.mark.disaster

SPREAD = Spread(0.01**2, np.array([0.02, 0.01]), np.array([0.06, 0.09]), np.array([0.6, 0.4]), np.array([60, 40]))
LEVEL = 0.05 / 7


def simulated(spread: Spread, seeds: int, difference: float, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Differences x [S, P] of one study under the model, whose weighted mean over benchmarks is `difference`."""
    luck = random.normal(difference, spread.seed**0.5, (seeds, 1))
    return {
        str(n): luck
        + random.normal(0, problem**0.5, (1, int(count)))
        + random.normal(0, rest**0.5, (seeds, int(count)))
        for n, (problem, rest, count) in enumerate(zip(spread.problem, spread.rest, spread.problems, strict=True))
    }


@pytest.mark.parametrize(("seeds", "luck"), [(3, 0.0), (3, 0.03), (5, 0.01), (8, 0.01), (12, 0.03)])
def test_the_promised_power_is_met_within_five_points(seeds: int, luck: float) -> None:
    spread = replace(SPREAD, seed=luck**2)
    weights = {str(index): weight for index, weight in enumerate(SPREAD.weights)}
    wanted = smallest(found_from(spread, seeds, LEVEL))
    random, studies = np.random.default_rng(seeds), 600
    found = [
        one.p <= LEVEL and one.mean > 0
        for one in (estimate(simulated(spread, seeds, wanted, random), weights) for _ in range(studies))
    ]
    assert np.mean(found) == pytest.approx(POWER, abs=0.05)


def test_variances_are_those_behind_the_differences() -> None:
    """Means over many pilots: every component is estimated without bias where it is far from 0."""
    random, wide = np.random.default_rng(1), replace(SPREAD, seed=0.09)
    weights = {"0": 3.0, "1": 2.0}
    found = pooled([one for _ in range(400) if (one := spread_of(simulated(wide, 4, 0.1, random), weights))])
    assert found.seed == pytest.approx(wide.seed, rel=0.15)
    np.testing.assert_allclose(found.problem, wide.problem, rtol=0.15)
    np.testing.assert_allclose(found.rest, wide.rest, rtol=0.05)
    np.testing.assert_allclose(found.weights, [0.6, 0.4])
    np.testing.assert_allclose(found.problems, [60, 40])


def test_a_plan_takes_the_upper_end_of_the_variance_between_seeds() -> None:
    """By hand: of two degrees of freedom, so three seeds, chi-squared is below −2 log 0.85 = 0.325 in 15% of cases. The
    variance of a seed's mean, its own 0.0001 and that of its samples 0.6² x 0.06 / 60 + 0.4² x 0.09 / 40 = 0.00072, is
    then 2 / 0.325 times as large. A variance that comes out at 0 or below does not promise that there is none."""
    noise = 0.36 * 0.06 / 60 + 0.16 * 0.09 / 40
    factor = 2 / (-2 * np.log(0.85))
    assert SPREAD.cautious(2).seed == pytest.approx((1e-4 + noise) * factor - noise)
    assert replace(SPREAD, seed=-1e-4).cautious(2).seed == pytest.approx(noise * (factor - 1))
    assert smallest(found_from(SPREAD.cautious(2), 8, LEVEL)) > smallest(found_from(SPREAD, 8, LEVEL))


@pytest.mark.parametrize("shape", [(1, 20), (3, 9), (3, 1)])
def test_one_seed_or_too_few_problems_say_nothing(shape: tuple[int, int]) -> None:
    assert spread_of({"b": np.random.default_rng(0).random(shape)}, None) is None


def test_seeds_needed_are_the_fewest() -> None:
    wanted = 0.07
    seeds = seeds_needed(SPREAD, wanted, LEVEL)
    assert seeds is not None
    assert smallest(found_from(SPREAD, seeds, LEVEL)) <= wanted < smallest(found_from(SPREAD, seeds - 1, LEVEL))
    assert seeds_needed(SPREAD, 0.001, LEVEL) is None  # the problems alone spread more
