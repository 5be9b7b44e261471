import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tepo.evaluation.statistics.comparison import AVERAGE, Difference, difference_of, holm
from tepo.evaluation.statistics.intervals import Tails, estimate
from tepo.evaluation.statistics.region import Region, RegionVerdict, judge_regions

AT_LEAST, AT_MOST, BETWEEN, OUTSIDE = Region(low=2), Region(high=-2), Region(-2, 2), Region(-2, 2, outside=True)


def difference(delta: float, error: float, tails: Tails | None = None) -> Difference:
    return Difference("r", AVERAGE, delta, error=error, tails=tails or Tails(7.0), seeds=8)


def outcome(one: Difference, region: Region) -> RegionVerdict:
    (decision,) = judge_regions([one], [region])
    assert decision is not None
    return decision.outcome


def test_one_seed_is_the_one_sided_t_test_of_scipy() -> None:
    x = np.random.default_rng(3).normal(2.5, 1.0, 400)
    one = difference_of("r", AVERAGE, estimate({"b": x[None]}), 1)
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


def test_nothing_to_test() -> None:
    for one in (Difference("r", AVERAGE), difference(1.0, math.nan)):
        assert outcome(one, AT_LEAST) == RegionVerdict.NOT_COMPARABLE


ends = st.floats(-5, 5)
regions = st.one_of(
    st.builds(Region, low=ends),
    st.builds(Region, high=ends),
    st.builds(lambda low, width, outside: Region(low, low + width, outside), ends, st.floats(1e-3, 5), st.booleans()),
)
tails = st.builds(Tails, st.floats(2, 1000), st.floats(1, 30), st.floats(0, 1))
differences = st.builds(difference, st.floats(-10, 10), st.one_of(st.just(0.0), st.floats(1e-4, 5)), tails)


@given(differences, regions)
def test_no_result_rejects_a_region_and_its_outside(one: Difference, region: Region) -> None:
    assert max(region.p_values(one)) >= 0.5


@given(st.lists(st.tuples(differences, regions), min_size=1, max_size=8))
def test_a_family_decides_no_more_than_each_claim_alone(family: list[tuple[Difference, Region]]) -> None:
    for one, (found, region) in zip(judge_regions(*map(list, zip(*family, strict=True))), family, strict=True):
        assert one is not None
        assert not (one.p_outside < 0.05 and one.p_region < 0.05)
        assert one.outcome in (outcome(found, region), RegionVerdict.UNDECIDED)


@given(differences, regions)
def test_swapping_the_rows_mirrors_the_region(one: Difference, region: Region) -> None:
    mirrored = Region(-region.high, -region.low, region.outside)
    swapped = Difference("r", AVERAGE, -one.delta, error=one.error, tails=one.tails)
    assert mirrored.p_values(swapped) == pytest.approx(region.p_values(one))


def test_each_side_of_a_family_is_holms_and_what_is_not_measured_counts() -> None:
    found = [difference(4.0, 0.5), difference(-1.0, 0.8), None, difference(0.3, 0.5)]
    judged = judge_regions(found, [AT_LEAST] * 4)
    assert judged[2] is None
    p = np.array([AT_LEAST.p_values(one) if one else (1.0, 1.0) for one in found])
    for index in (0, 1, 3):
        one = judged[index]
        assert one is not None
        assert (one.p_outside, one.p_region) == pytest.approx((holm(p[:, 0])[index], holm(p[:, 1])[index]))


def test_a_fixed_order_by_hand() -> None:
    """One-sided p of t = 4, 2, 1.5 and 6 with 7 degrees of freedom: .0026, .0428, .0886 and .0003. Plain p decide up to
    the third, which does not hold; Holm's procedure rejects the fourth and the first."""
    found = [difference(2 + t, 1.0) for t in (4, 2, 1.5, 6)]
    in_order = judge_regions(found, [AT_LEAST] * 4, in_order=True)
    assert [one.outcome for one in in_order] == ["holds", "holds", "undecided", "not tested"]
    assert [one.p_outside for one in in_order[:3]] == pytest.approx([0.0026, 0.0428, 0.0886], abs=6e-5)
    assert [one.decides for one in in_order] == [True, True, True, False]
    assert [one.outcome for one in judge_regions(found, [AT_LEAST] * 4)] == ["holds", "undecided", "undecided", "holds"]
    refuted = judge_regions([difference(-1, 1.0), *found], [AT_LEAST] * 5, in_order=True)
    assert [one.outcome for one in refuted] == ["refuted", *["not tested"] * 4]
    waiting = judge_regions([found[0], None, found[1]], [AT_LEAST] * 3, in_order=True)
    assert [one and one.outcome for one in waiting] == ["holds", None, "not tested"]


@given(differences, regions)
def test_alone_a_claim_is_decided_where_its_interval_leaves_out_the_end(one: Difference, region: Region) -> None:
    (decision,) = judge_regions([one], [region])
    low, high = decision.interval
    share = 0.9 if region.one_sided else 0.95
    if one.error:
        assert one.tails.below((high - one.delta) / one.error) == pytest.approx((1 + share) / 2, abs=1e-6)
    end = region.low if math.isfinite(region.low) else region.high
    if region.one_sided and min(abs(low - end), abs(high - end)) > 1e-6:
        assert (decision.outcome == "undecided") == (low < end < high)
