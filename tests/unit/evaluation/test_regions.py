import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tepo.evaluation.statistics.answer import NOTHING, Answer, Question, answers
from tepo.evaluation.statistics.intervals import Estimate, Tails, estimate
from tepo.evaluation.statistics.region import DIFFERS, Region
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


FAMILIES, SEEDS, PROBLEMS = 400, 8, 60


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
    random, failed = np.random.default_rng(5), 0
    for _ in range(FAMILIES):
        of_seeds = luck * random.standard_normal((len(family), SEEDS, 1))
        cells = 0.02 + of_seeds + 0.3 * random.standard_normal((len(family), SEEDS, PROBLEMS))
        asked = [
            Question("a", "b", "average", estimate({"b": x}), region=region)
            for x, region in zip(cells, family, strict=True)
        ]
        failed += any(answer.verdict is wrong for answer in answers(asked))
    assert failed / FAMILIES <= 0.05 + 0.015


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
