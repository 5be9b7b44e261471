"""The saturating fit: known parameters, an independent minimiser, curves without a ceiling, the last third."""

import numpy as np
import pytest
from scipy.optimize import curve_fit

from tepo.evaluation.statistics.scaling_fit import Curve, Fit, fit, predict_last_third

COMPUTE = np.arange(1, 37) * 10_000.0
START, CEILING, MIDDLE, STEEPNESS = 0.3, 0.75, 40_000.0, 1.5


def law(compute: np.ndarray, ceiling: float, middle: float, steepness: float) -> np.ndarray:
    """The formula as Khatri et al. print it."""
    return START + (ceiling - START) / (1 + (middle / compute) ** steepness)


def noisy(seed: int, size: float = 0.01, *, ceiling: float = CEILING, middle: float = MIDDLE) -> Curve:
    noise = size * np.random.default_rng(seed).standard_normal(len(COMPUTE))
    return Curve(START, COMPUTE, law(COMPUTE, ceiling, middle, STEEPNESS) + noise)


def parameters(one: Fit) -> tuple[float, float, float]:
    return one.ceiling, one.middle, one.steepness


@pytest.mark.parametrize("truth", [(0.75, 40_000, 1.5), (0.9, 5_000, 0.8), (0.5, 150_000, 4), (0.1, 60_000, 2)])
def test_known_parameters_are_recovered(truth: tuple[float, float, float]) -> None:
    one = fit(Curve(START, COMPUTE, law(COMPUTE, *truth)))
    assert parameters(one) == pytest.approx(truth, rel=1e-5)
    assert one.at(COMPUTE) == pytest.approx(law(COMPUTE, *truth), abs=1e-8)
    assert not one.no_ceiling
    assert one.log_compute(0.5) == pytest.approx(np.log(truth[1]), rel=1e-6)
    assert one.at(np.exp(one.log_compute(0.9))) == pytest.approx(START + 0.9 * (truth[0] - START))


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_is_that_of_an_independent_minimiser(seed: int) -> None:
    """Of the printed formula, without logarithms of parameters, with its own numerical derivatives."""
    curve = noisy(seed)
    starts = [(0.6, 20_000, 1), (0.8, 80_000, 2)]
    found = [
        curve_fit(law, curve.compute, curve.scores, p0, bounds=([0, 100, 0.25], [1, 360_000, 8]), x_scale=[1, 1e4, 1])[
            0
        ]
        for p0 in starts
    ]
    best = min(found, key=lambda values: ((law(COMPUTE, *values) - curve.scores) ** 2).sum())
    one = fit(curve)
    assert one.start == START
    assert parameters(one) == pytest.approx(best, rel=1e-3)
    assert one.residuals == pytest.approx(curve.scores - one.at(COMPUTE), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_a_fitted_start_is_that_of_an_independent_minimiser(seed: int) -> None:
    """A fast rise before the first score, then the law: its start is far above that of the untrained policy."""

    def free(compute: np.ndarray, ceiling: float, middle: float, steepness: float, start: float) -> np.ndarray:
        return start + (ceiling - start) / (1 + (middle / compute) ** steepness)

    exact = free(COMPUTE, 0.8, 150_000, 2.5, 0.7)
    assert (*parameters(one := fit(Curve(None, COMPUTE, exact))), one.start) == pytest.approx((0.8, 150_000, 2.5, 0.7))
    scores = exact + 0.002 * np.random.default_rng(seed).standard_normal(len(COMPUTE))
    lowest, highest = [0, 100, 0.25, 0], [1, 360_000, 8, 1]
    found = [
        curve_fit(free, COMPUTE, scores, p0, bounds=(lowest, highest), x_scale=[1, 1e5, 1, 1])[0]
        for p0 in ((0.8, 100_000, 2, 0.7), (0.9, 200_000, 4, 0.6))
    ]
    best = min(found, key=lambda values: ((free(COMPUTE, *values) - scores) ** 2).sum())
    one = fit(Curve(None, COMPUTE, scores))
    assert (*parameters(one), one.start) == pytest.approx(best, rel=2e-3)


@pytest.mark.parametrize("start", [START, None], ids=["measured", "fitted"])
def test_a_problem_s_contribution_is_what_a_change_of_it_does_to_the_fit(start: float | None) -> None:
    """The derivative of what is compared by each score and by R0, against refits."""
    curve = Curve(start, COMPUTE, law(COMPUTE, CEILING, MIDDLE, STEEPNESS))
    one, step = fit(curve), 1e-5
    for index in (0, 1, 4, 20, 36):
        change = np.zeros(37)
        change[index] = step
        moved = fit(Curve(None if start is None else start + change[0], COMPUTE, curve.scores + change[1:]))
        cells = one.ceiling_cells({"b": np.stack([np.zeros(37), 2 * change], axis=1)})["b"]
        assert cells.mean() == pytest.approx(one.ceiling, abs=1e-12)
        assert cells[1] - cells[0] == pytest.approx(2 * (moved.ceiling - one.ceiling), rel=0.02, abs=2e-9)
        cells = one.speed_cells(0.9, {"b": np.stack([np.zeros(37), 2 * change], axis=1)})["b"]
        expected = 2 * (moved.log_compute(0.9) - one.log_compute(0.9))
        assert cells[1] - cells[0] == pytest.approx(expected, rel=0.02, abs=2e-8)


def test_a_flat_curve_has_its_level_as_ceiling() -> None:
    noise = 0.004 * np.random.default_rng(0).standard_normal(len(COMPUTE))
    one = fit(Curve(START, COMPUTE, START + 0.2 + noise))  # it was there at the first score
    assert one.ceiling == pytest.approx(START + 0.2, abs=0.005)


@pytest.mark.parametrize(
    "scores",
    [START + COMPUTE / 1e6, START + (COMPUTE / 5e5) ** 2, START + 0.05 * np.log1p(COMPUTE / 10)],
    ids=["straight", "ever steeper", "logarithmic"],
)
def test_a_curve_that_still_rises_has_no_ceiling(scores: np.ndarray) -> None:
    assert fit(Curve(START, COMPUTE, scores)).no_ceiling


@pytest.mark.parametrize("seed", [0, 2], ids=["B at its bound too", "C alone"])
def test_a_curve_that_rose_before_its_first_score_has_its_compute_at_the_bound(seed: int) -> None:
    noise = 0.004 * np.random.default_rng(seed).standard_normal(len(COMPUTE))
    one = fit(Curve(START, COMPUTE, START + 0.2 + noise))
    assert one.middle == pytest.approx(0.01 * COMPUTE[0], rel=1e-3)
    assert one.compute_at_bound
    assert not one.ceiling_at_bound
    assert fit(Curve(START, COMPUTE, np.full(len(COMPUTE), 1.0))).ceiling_at_bound
    usual = fit(noisy(0))
    assert (usual.compute_at_bound, usual.ceiling_at_bound) == (False, False)


def test_a_curve_that_falls_has_a_ceiling_below_its_start() -> None:
    one = fit(Curve(START, COMPUTE, law(COMPUTE, 0.05, MIDDLE, 3)))
    assert one.ceiling == pytest.approx(0.05, abs=1e-4)


def test_the_last_third_of_a_saturating_curve_is_predicted() -> None:
    one = predict_last_third([noisy(seed) for seed in range(3)])
    assert one.good
    assert abs(one.miss) < 0.01
    assert 0.001 < one.noise < 0.02


@pytest.mark.parametrize("late", [-0.08, 0.08])
def test_a_curve_that_turns_in_its_last_third_is_not_predicted(late: float) -> None:
    """It collapses late, or rises again: by four times its noise."""
    curves = [noisy(seed) for seed in range(3)]
    turned = [Curve(c.start, c.compute, c.scores + late * (c.compute > 2 / 3 * c.compute[-1])) for c in curves]
    one = predict_last_third(turned)
    assert not one.good
    assert one.miss == pytest.approx(predict_last_third(curves).miss + late)


def test_the_miss_is_that_of_the_fit_to_the_first_two_thirds() -> None:
    curve = noisy(5)
    early = fit(Curve(START, COMPUTE[:24], curve.scores[:24]))
    assert predict_last_third([curve]).miss == pytest.approx((curve.scores[24:] - early.at(COMPUTE[24:])).mean())


def test_noise_alone_gives_the_stated_share() -> None:
    """95% of saturating curves are predicted within their noise, neighbours correlated or not."""
    for correlation in (0.0, 0.5):
        random, good = np.random.default_rng(1), 0
        for _ in range(30):
            curves = []
            for _ in range(3):
                noise = random.standard_normal(len(COMPUTE))
                for i in range(1, len(noise)):
                    noise[i] = correlation * noise[i - 1] + (1 - correlation**2) ** 0.5 * noise[i]
                scores = law(COMPUTE, CEILING, MIDDLE, STEEPNESS) + 0.006 * noise
                curves.append(Curve(START, COMPUTE, scores))
            good += predict_last_third(curves).good
        assert good >= 25  # 28.5 expected; fewer than 25 of 30 has a chance below 2% at 95%


def test_too_few_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 5 scores, not 4"):
        fit(Curve(START, COMPUTE[:4], np.full(4, 0.5)))
    with pytest.raises(ValueError, match="last third holds fewer than 2"):
        predict_last_third([Curve(START, np.array([1, 2, 3, 4, 5, 9.0]), np.full(6, 0.5))])
