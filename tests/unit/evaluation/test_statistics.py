import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tepo.evaluation.statistics.answer import NOTHING, Answer, Question, answers
from tepo.evaluation.statistics.intervals import Estimate, Tails, estimate
from tepo.evaluation.statistics.over_environments import over_environments
from tepo.evaluation.statistics.power import POWER, Spread, found_from, pooled, seeds_needed, smallest, spread_of
from tepo.evaluation.statistics.region import DIFFERS, Region
from tepo.evaluation.statistics.training_measures import (
    censored,
    entropy_gap,
    estimate_gaps,
    late_mean,
    log_mean,
    steps_to,
)
from tepo.evaluation.statistics.verdict import DeltaVerdict, holm

AT_LEAST, AT_MOST, BETWEEN, OUTSIDE = Region(low=2), Region(high=-2), Region(-2, 2), Region(-2, 2, outside=True)


def difference(delta: float, error: float, tails: Tails | None = None) -> Estimate:
    return Estimate.symmetric(delta, error, tails or Tails(7.0))


def judged(found: Sequence[Estimate], regions: Sequence[Region], *, in_order: bool = False) -> list[Answer]:
    """Verdicts on differences, as one family."""
    asked = [Question("a", "b", "average", one, region=region) for one, region in zip(found, regions, strict=True)]
    return answers(asked, in_order=in_order)


def outcome(one: Estimate, region: Region) -> DeltaVerdict:
    (answer,) = judged([one], [region])
    return answer.verdict


def test_one_seed_is_the_one_sided_t_test_of_scipy() -> None:
    x = np.random.default_rng(3).normal(2.5, 1.0, 400)
    one = estimate({"b": x[None]})
    for region, away, within in ((Region(low=2.4), "greater", "less"), (Region(high=2.4), "less", "greater")):
        p_outside, p_region = region.p_values(one)
        assert p_outside == pytest.approx(stats.ttest_1samp(x, 2.4, alternative=away).pvalue)
        assert p_region == pytest.approx(stats.ttest_1samp(x, 2.4, alternative=within).pvalue)


def test_mixed_tails_are_those_of_the_crossed_error() -> None:
    """Three quarters of the variance are of 8 seeds, a quarter of 900 problems."""
    one = difference(0.5, 0.4, Tails(899.0, 7.0, 0.75))
    t = (2 - 0.5) / 0.4
    p = 0.75 * stats.t.sf(t, 7) + 0.25 * stats.t.sf(t, 899)
    assert AT_LEAST.p_values(one) == pytest.approx((1 - p, p))


def test_an_interval_is_two_half_lines_from_outside_and_its_nearer_end_from_within() -> None:
    inside, beyond = difference(0.5, 0.6), difference(3.5, 0.6)
    near, far = stats.t.sf(1.5 / 0.6, 7), stats.t.sf(2.5 / 0.6, 7)
    assert BETWEEN.p_values(inside)[0] == pytest.approx(max(near, far))
    assert BETWEEN.p_values(beyond)[1] == pytest.approx(near + stats.t.sf(5.5 / 0.6, 7))  # the far side hardly counts
    assert OUTSIDE.p_values(inside) == BETWEEN.p_values(inside)[::-1]
    width = 1e-9  # a point: the two-sided test of it
    assert Region(2, 2 + width).p_values(beyond)[1] == pytest.approx(2 * near, rel=1e-6)


@pytest.mark.parametrize(
    ("region", "verdicts"),
    [
        (AT_LEAST, "refuted refuted undecided holds"),
        (AT_MOST, "holds refuted refuted refuted"),
        (BETWEEN, "refuted holds undecided refuted"),
        (OUTSIDE, "holds refuted undecided holds"),
        (Region(low=-2), "refuted holds holds holds"),
    ],
)
def test_outcomes_by_hand(region: Region, verdicts: str) -> None:
    """With an error of 0.5 and t of 1.895 an end is passed by 0.95: differences -4, 0, 2.5 and 4."""
    assert " ".join(outcome(difference(delta, 0.5), region) for delta in (-4, 0, 2.5, 4)) == verdicts


@pytest.mark.parametrize(("delta", "word"), [(2.1, "holds"), (2.0, "undecided"), (1.9, "refuted")])
def test_rows_that_never_vary(delta: float, word: str) -> None:
    assert outcome(difference(delta, 0.0), AT_LEAST) == word
    assert outcome(difference(-delta, 0.0), AT_MOST) == word


ends = st.floats(-5, 5)
regions = st.one_of(
    st.builds(Region, low=ends),
    st.builds(Region, high=ends),
    st.builds(lambda low, width, outside: Region(low, low + width, outside), ends, st.floats(1e-3, 5), st.booleans()),
)
tails = st.builds(Tails, st.floats(2, 1000), st.floats(1, 30), st.floats(0, 1))
differences = st.builds(difference, st.floats(-10, 10), st.one_of(st.just(0.0), st.floats(1e-4, 5)), tails)


@given(differences, regions)
def test_no_result_rejects_a_region_and_its_outside(one: Estimate, region: Region) -> None:
    assert max(region.p_values(one)) >= 0.5


@given(st.lists(st.tuples(differences, regions), min_size=1, max_size=8))
def test_a_family_decides_no_more_than_each_claim_alone(family: list[tuple[Estimate, Region]]) -> None:
    for one, (found, region) in zip(judged(*map(list, zip(*family, strict=True))), family, strict=True):
        assert not (one.p_outside < 0.05 and one.p_inside < 0.05)
        assert one.verdict in (outcome(found, region), DeltaVerdict.UNDECIDED)


@given(differences, regions)
def test_swapping_the_rows_mirrors_the_region(one: Estimate, region: Region) -> None:
    mirrored = Region(-region.high, -region.low, region.outside)
    swapped = difference(-one.mean, one.error, one.tails)
    assert mirrored.p_values(swapped) == pytest.approx(region.p_values(one))


def test_each_side_of_a_family_is_holms_and_what_is_not_measured_counts() -> None:
    family = [difference(4.0, 0.5), difference(-1.0, 0.8), NOTHING, difference(0.3, 0.5)]
    made = judged(family, [AT_LEAST] * 4)
    assert math.isnan(made[2].p)
    p = np.array([(1.0, 1.0) if one is NOTHING else AT_LEAST.p_values(one) for one in family])
    expected = np.stack([holm(p[:, 0]), holm(p[:, 1])], axis=1)
    for index in (0, 1, 3):
        assert (made[index].p_outside, made[index].p_inside) == pytest.approx(expected[index])


@given(differences, st.integers(1, 40))
def test_that_rows_differ_is_the_claim_of_everything_but_zero(one: Estimate, family: int) -> None:
    """A verdict on a row is better or worse exactly where the two-sided p of its own estimate, times the family, is
    below 5%; the claim of all but a hair around 0 has the same p."""
    (answer,) = answers([Question("a", "b", "average", one)], family)
    (alone,) = answers([Question("a", "b", "average", one)])
    assert alone.p == pytest.approx(one.p)
    assert answer.p == pytest.approx(min(1.0, family * one.p))
    decided = answer.verdict in (DeltaVerdict.BETTER, DeltaVerdict.WORSE)
    assert decided == (family * one.p < 0.05)
    assert answer.interval == (one.low, one.high)
    if decided:
        assert (answer.verdict is DeltaVerdict.BETTER) == (one.mean > 0)
    if one.error and abs(one.mean) > 1e-9:
        hair = Region(-1e-12, 1e-12, outside=True)
        assert DIFFERS.p_values(one)[0] == pytest.approx(hair.p_values(one)[0], abs=1e-6)


def test_a_fixed_order_by_hand() -> None:
    """One-sided p of t = 4, 2, 1.5 and 6 with 7 degrees of freedom: .0026, .0428, .0886 and .0003. Plain p decide up to
    the third, which does not hold; Holm's procedure rejects the fourth and the first."""
    found = [difference(2 + t, 1.0) for t in (4, 2, 1.5, 6)]
    in_order = judged(found, [AT_LEAST] * 4, in_order=True)
    assert [one.verdict for one in in_order] == ["holds", "holds", "undecided", "not tested"]
    assert [one.p_outside for one in in_order[:3]] == pytest.approx([0.0026, 0.0428, 0.0886], abs=6e-5)
    assert [one.decides for one in in_order] == [True, True, True, False]
    assert [one.verdict for one in judged(found, [AT_LEAST] * 4)] == ["holds", "undecided", "undecided", "holds"]
    refuted = judged([difference(-1, 1.0), *found], [AT_LEAST] * 5, in_order=True)
    assert [one.verdict for one in refuted] == ["refuted", *["not tested"] * 4]
    waiting = judged([found[0], NOTHING, found[1]], [AT_LEAST] * 3, in_order=True)
    assert [one.verdict for one in waiting] == ["holds", "not comparable", "not tested"]


@pytest.mark.disaster
@pytest.mark.parametrize("luck", [0.0, 0.05])
@pytest.mark.parametrize(
    ("family", "wrong"),
    [
        ([Region(low=0.02)] * 6, DeltaVerdict.REFUTED),  # the truth is the end of the region: the worst place
        ([Region(low=np.nextafter(0.02, 1), high=np.inf)] * 6, DeltaVerdict.HOLDS),
        ([Region(-0.02, 0.02)] * 6, DeltaVerdict.REFUTED),
        ([Region(-0.02, 0.02, outside=True)] * 6, DeltaVerdict.REFUTED),
        ([Region(low=0.02)] * 3 + [Region(low=-0.2)] * 3, DeltaVerdict.REFUTED),  # half of the family surely holds
    ],
)
def test_in_at_most_five_of_a_hundred_families_a_claim_comes_out_wrong(
    luck: float, family: list[Region], wrong: DeltaVerdict
) -> None:
    """luck: standard deviation of a seed's difference, in shares; the rest of a cell has 0.3."""
    random, failed, families, seeds, problems = np.random.default_rng(5), 0, 400, 8, 60
    for _ in range(families):
        of_seeds = luck * random.standard_normal((len(family), seeds, 1))
        cells = 0.02 + of_seeds + 0.3 * random.standard_normal((len(family), seeds, problems))
        asked = [
            Question("a", "b", "average", estimate({"b": x}), region=region)
            for x, region in zip(cells, family, strict=True)
        ]
        failed += any(answer.verdict is wrong for answer in answers(asked))
    assert failed / families <= 0.05 + 0.015


@given(st.floats(2, 500), st.integers(1, 20), st.floats(0, 1), st.floats(0.0001, 0.9999))
def test_the_quantile_is_the_inverse_of_the_probability(
    problems: float, seeds: int, share: float, probability: float
) -> None:
    mixed = Tails(problems, seeds, share)
    assert mixed.below(mixed.quantile(probability)) == pytest.approx(probability, rel=1e-4)
    assert mixed.quantile(1 - probability) == pytest.approx(-mixed.quantile(probability), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("seeds", "luck"), [(3, 0.0), (3, 0.1), (3, 0.3), (3, 2.0), (5, 0.3)])
def test_equal_rows_differ_in_five_of_a_hundred_studies_at_most(seeds: int, luck: float) -> None:
    """Also at the level of a family of eight, and wherever the luck of training lies beside the noise of problems:
    Satterthwaite's degrees of freedom gave up to 7% with three seeds, and 2.5% of the comparisons at 5% / 8."""
    random, studies = np.random.default_rng(seeds), 2000
    noise = random.standard_normal((studies, seeds, 50)) + luck * random.standard_normal((studies, seeds, 1))
    p = np.array([estimate({"b": x}).p for x in noise])
    assert (p < 0.05).mean() < 0.05 + 2 * (0.05 * 0.95 / studies) ** 0.5
    assert (p < 0.05 / 8).mean() < 0.05 / 8 + 2 * (0.05 / 8 / studies) ** 0.5


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


@pytest.mark.disaster
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


@pytest.mark.disaster
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


BASES, SEEDS, PROBLEMS = 5, 3, 40


def cells(by_run: np.ndarray) -> list[dict[str, np.ndarray]]:
    """by_run [B, S], alike on every problem, so that problems add nothing."""
    return [{"one": np.repeat(row[:, None], PROBLEMS, axis=1)} for row in by_run]


def test_without_noise_of_problems_these_are_a_pooled_t_and_their_average_is_the_t_of_the_bases() -> None:
    by_run = np.random.default_rng(1).normal(0.03, 0.02, (BASES, SEEDS)) + np.linspace(-0.04, 0.04, BASES)[:, None]
    found = over_environments(cells(by_run))
    error = (by_run.var(axis=1, ddof=1).mean() / (BASES * SEEDS)) ** 0.5
    half = stats.t.ppf(0.975, BASES * (SEEDS - 1)) * error
    assert (found.these.low, found.these.high) == pytest.approx((by_run.mean() - half, by_run.mean() + half))
    of_bases = stats.ttest_1samp(by_run.mean(axis=1), 0)
    assert found.average.p == pytest.approx(of_bases.pvalue)
    assert found.average.error == pytest.approx(by_run.mean(axis=1).std(ddof=1) / BASES**0.5)
    between = by_run.mean(axis=1).var(ddof=1) - by_run.var(axis=1, ddof=1).mean() / SEEDS
    assert found.between == pytest.approx(between**0.5)


def test_one_seed_or_one_base_gives_no_interval_where_it_is_needed() -> None:
    one_seed = over_environments(cells(np.linspace(0, 0.1, BASES)[:, None]))
    one_base = over_environments(cells(np.array([[0.01, 0.02, 0.04]])))
    assert [math.isnan(part.low) for part in (one_seed.these, one_seed.average)] == [True, False]
    assert [math.isnan(part.low) for part in (one_base.these, one_base.average)] == [False, True]


def test_one_more_base_lies_within_the_spread_of_the_bases_and_the_error_of_their_mean() -> None:
    """By hand: differences of −2, −1, 0, 1 and 2 points have a variance of 2.5, and their mean one of 0.5; t of four
    degrees of freedom is 2.776. The interval of the mean is three times too narrow for one of them."""
    found = over_environments(cells(np.array([[-0.02], [-0.01], [0.0], [0.01], [0.02]])))
    assert found.one == pytest.approx((-0.02776445 * 3**0.5, 0.02776445 * 3**0.5))
    assert (found.average.low, found.average.high) == pytest.approx((-0.02776445 * 0.5**0.5, 0.02776445 * 0.5**0.5))
    assert all(map(math.isnan, over_environments(cells(np.array([[0.01, 0.02]]))).one))


@pytest.mark.parametrize(
    ("spread", "truth", "level"),
    [(0.03, "these", 0.95), (0.03, "average", 0.95), (0.03, "one", 0.95), (0.03, "one, by the average", 0.7)],
)
def test_the_intervals_hold_the_truth_as_often_as_they_say(spread: float, truth: str, level: float) -> None:
    """Truth of these: the mean of the drawn bases; of their average: 0; of one more: what is measured on it. Seeds and
    problems vary too. The interval of the average, which was said to be for a new base, holds one in 70% of cases."""
    random, held, trials = np.random.default_rng(7), 0, 600
    for _ in range(trials):
        bases = random.normal(0, spread, BASES + 1)
        by_run = bases[:, None] + random.normal(0, 0.02, (BASES + 1, SEEDS))
        problems = random.normal(0, 0.05, PROBLEMS)
        x = by_run[..., None] + problems + random.normal(0, 0.1, (BASES + 1, SEEDS, PROBLEMS))
        found = over_environments([{"one": base} for base in x[:BASES]])
        mean = found.these if truth == "these" else found.average
        low, high = found.one if truth == "one" else (mean.low, mean.high)
        aim = {"these": bases[:BASES].mean(), "average": 0.0}.get(truth, x[BASES].mean() - problems.mean())
        held += low <= aim <= high
    assert held / trials == pytest.approx(level, abs=0.035)


def rows(values: list[float | None], metric: str = "m") -> list[dict[str, Any]]:
    """A step for each value; one without leaves the metric out."""
    steps = enumerate(values, start=1)
    return [{"training/global_step": step} | ({} if value is None else {metric: value}) for step, value in steps]


def test_means_of_what_is_there() -> None:
    """Late is the last quarter of it."""
    for last, mean in (([1.0, 3.0], 2.0), ([None, 3.0], 3.0), ([None, None], math.nan)):
        assert late_mean(rows([9.0] * 6 + last), "m") == pytest.approx(mean, nan_ok=True)
    for values, mean in (([1.0, None, 3.0], math.log(2)), ([None], math.nan), ([0.0, 0.0], math.nan)):
        assert log_mean(rows(values), "m") == pytest.approx(mean, nan_ok=True)


def test_steps_to_a_threshold_are_interpolated_on_the_running_mean() -> None:
    """Validated every second step with 0.0, 0.1, 0.2, ...: the mean of three at its middle step is the line itself."""
    line = rows([None if step % 2 else step / 20 for step in range(1, 21)])
    assert steps_to(line, "m", 0.55, 20) == pytest.approx(11.0)
    assert steps_to(line, "m", 0.0, 20) == 4.0  # the middle of the first window
    assert steps_to(line, "m", 2.0, 20) == math.inf  # never
    assert math.isnan(steps_to(line[:5], "m", 0.1, 5))
    assert steps_to(line[:5], "m", 0.1, 216) == math.inf, "ended early, not even validated three times"


NEVER = math.inf
STEPS = {
    "all of A and one of B": (
        (NEVER, NEVER, NEVER), (40.0, NEVER, 60.0),
        "all 3 runs of A and 1 of 3 runs of B never reach it: no difference in steps can be stated, at least +50 over "
        "the 2 seeds on which B does",
    ),  # 100 - 40 and 100 - 60
    "one of B": (
        (50.0, 60.0), (NEVER, 90.0),
        "1 of 2 runs of B never reach it: no difference in steps can be stated, at most −40",
    ),  # 50 - 100 and 60 - 90
}  # fmt: skip


@pytest.mark.parametrize("case", STEPS)
def test_times_that_no_run_lived_to_see_give_no_difference(case: str) -> None:
    """Of 100 planned steps."""
    a, b, words = STEPS[case]
    assert censored(a, b, 100) == words


def test_over_seeds_it_is_the_t_test() -> None:
    gaps = np.random.default_rng(0).normal(0.02, 0.01, 8)
    found = estimate_gaps([*gaps, math.nan])
    wanted = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((gaps.mean(), wanted.low, wanted.high))
    assert found.p == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    assert math.isnan(estimate_gaps([math.nan] * 3).mean)
    single = estimate_gaps([0.02, math.nan])
    assert single.mean == 0.02
    assert math.isnan(single.p)


def run_of(speed: float, extra: float = 0.0) -> np.ndarray:
    """Reward rises in a straight line; entropy is a function of the reward, plus `extra`."""
    reward = 0.3 + speed * np.arange(40)
    return np.stack([reward, 0.5 - 0.4 * reward + extra], axis=-1)


@pytest.mark.parametrize("speed", [0.01, 0.02])
def test_a_faster_run_has_no_less_entropy_at_the_same_reward(speed: float) -> None:
    assert entropy_gap(run_of(speed), run_of(0.01)) == pytest.approx(0.0, abs=1e-9)
    assert entropy_gap(run_of(speed, 0.07), run_of(0.01)) == pytest.approx(0.07)


def test_a_reward_that_falls_again_counts_where_it_was_first_reached() -> None:
    falling = run_of(0.01)
    falling[30:] = falling[29] - [[0.2, 0.4]]
    assert entropy_gap(falling, run_of(0.01)) == pytest.approx(0.0, abs=5e-3)
