"""Better, worse, equivalent, undecided: by hand, and what must hold whatever the numbers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tepo.evaluation.statistics.comparison import AVERAGE, Difference, holm
from tepo.evaluation.statistics.comparison_verdict import Verdict
from tepo.evaluation.statistics.equivalence import correct_pairs, decide, equivalence_p
from tepo.evaluation.statistics.intervals import Tails, estimate


def difference(delta: float, error: float, freedom: float = 10.0) -> Difference:
    """With the symmetric 95% interval."""
    half = float(stats.t.ppf(0.975, freedom)) * error
    p = float(2 * stats.t.sf(abs(delta) / error, freedom))
    return Difference(
        "r", AVERAGE, delta, delta - half, delta + half, half, p, seeds=8, error=error, tails=Tails(freedom)
    )


def test_equivalence_by_hand() -> None:
    """delta 0.5 points, error 0.5, margin 2, 10 degrees: t is (2 - 0.5) / 0.5 = 3 and (2 + 0.5) / 0.5 = 5. The larger
    one-sided p is that of 3, 0.006672 in a table of Student's t; doubled 0.013344."""
    one = difference(0.005, 0.005)
    assert equivalence_p(one, 0.02) == pytest.approx(0.013344, abs=1e-6)
    assert equivalence_p(difference(-0.005, 0.005), 0.02) == pytest.approx(0.013344, abs=1e-6)
    assert equivalence_p(difference(0.02, 0.005), 0.02) == pytest.approx(1.0)  # at the margin: one-sided 1/2
    assert equivalence_p(difference(0.05, 0.005), 0.02) == 1.0


@pytest.mark.parametrize(("delta", "p"), [(0.01, 0.0), (0.02, 1.0), (0.03, 1.0)])
def test_equivalence_of_rows_that_never_vary(delta: float, p: float) -> None:
    one = Difference("r", AVERAGE, delta, delta, delta, 0.0, 0.0, error=0.0, tails=Tails(math.inf))
    assert equivalence_p(one, 0.02) == p


def test_one_seed_is_the_two_one_sided_t_tests_of_scipy() -> None:
    x = np.random.default_rng(3).normal(0.005, 0.1, 400)
    one = estimate({"b": x[None]})
    found = Difference("r", AVERAGE, one.mean, one.low, one.high, one.half, one.p, error=one.error, tails=one.tails)
    above = stats.ttest_1samp(x, -0.02, alternative="greater").pvalue
    below = stats.ttest_1samp(x, 0.02, alternative="less").pvalue
    assert equivalence_p(found, 0.02) == pytest.approx(2 * max(above, below))


def test_a_family_by_hand() -> None:
    """Three pairs. Sorted: 0.001 (3 pairs open), 0.01 (3: the first pair has its other hypothesis), 0.02 (3), 0.03 (2:
    the second pair is done), 0.5 (2), 0.9 (1). Running maxima: 0.003, 0.03, 0.06, 0.06, 1, 1."""
    p = np.array([[0.001, 0.5], [0.01, 0.02], [0.03, 0.9]])
    np.testing.assert_allclose(correct_pairs(p), [[0.003, 1.0], [0.03, 0.06], [0.06, 1.0]])


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8))
def test_a_family_of_pairs_is_never_harder_than_holms_over_all_hypotheses(pairs: list[tuple[float, float]]) -> None:
    p = np.array(pairs)
    assert (correct_pairs(p).ravel() <= holm(p.ravel()) + 1e-12).all()


def test_true_hypotheses_are_rejected_in_at_most_five_of_a_hundred_families() -> None:
    """Four differences of 0 and four at the margin, each with one degree of luck; 800 families, a fixed seed."""
    random = np.random.default_rng(4)
    truth, margins, wrong = np.array([0.0] * 4 + [0.02] * 4), [0.02] * 8, 0
    for _ in range(800):
        found = truth + random.normal(0, 0.004, 8)
        for one, true in zip(decide([difference(delta, 0.004, 1e6) for delta in found], margins), truth, strict=True):
            assert one is not None
            if (true == 0 and one.p_difference < 0.05) or (true > 0 and one.p_equivalence < 0.05):
                wrong += 1
                break
    assert wrong / 800 <= 0.05 + 0.015


def test_a_claim_that_is_not_measured_counts_in_the_family() -> None:
    p = np.array([[0.02, 1.0], [np.nan, np.nan]])
    np.testing.assert_allclose(correct_pairs(p), [[0.04, 1.0], [np.nan, np.nan]])
    first, second = decide([difference(0.03, 0.01), None], [0.02, 0.02])
    assert first is not None
    assert second is None
    assert first.p_difference == pytest.approx(2 * difference(0.03, 0.01).p)


def test_verdicts_by_hand() -> None:
    """One at a time, so that nothing is corrected: intervals are delta ± 2.228 errors."""
    verdicts = {
        (0.03, 0.005): Verdict.BETTER,  # [1.9, 4.1] points, margin 2
        (-0.03, 0.005): Verdict.WORSE,
        (0.0, 0.005): Verdict.EQUIVALENT,  # [-1.1, 1.1]
        (0.005, 0.001): Verdict.EQUIVALENT,  # [0.3, 0.7]: beyond noise, and too small to matter
        (0.01, 0.005): Verdict.UNDECIDED,  # [-0.1, 2.1]
        (0.012, 0.005): Verdict.BETTER,  # [0.1, 2.3]
        (0.0, 0.01): Verdict.UNDECIDED,  # [-2.2, 2.2]
    }
    for (delta, error), verdict in verdicts.items():
        (one,) = decide([difference(delta, error)], [0.02])
        assert one is not None
        assert one.verdict == verdict, (delta, error)


def test_nothing_shared_is_not_comparable() -> None:
    (one,) = decide([Difference("r", AVERAGE)], [0.02])
    assert one is not None
    assert one.verdict == Verdict.NOT_COMPARABLE


sizes = st.floats(-0.1, 0.1, allow_subnormal=False)
errors = st.floats(1e-4, 0.05)
families = st.lists(st.tuples(sizes, errors, st.floats(2, 100), st.floats(0.005, 0.05)), min_size=1, max_size=8)


@given(families)
def test_verdicts_agree_with_their_intervals(family: list[tuple[float, float, float, float]]) -> None:
    differences = [difference(delta, error, freedom) for delta, error, freedom, _ in family]
    margins = [margin for *_, margin in family]
    for one in decide(differences, margins):
        assert one is not None
        low, high = one.difference.low, one.difference.high
        match one.verdict:
            case Verdict.EQUIVALENT:
                assert -one.margin < low <= high < one.margin
            case Verdict.BETTER:
                assert low > 0
            case Verdict.WORSE:
                assert high < 0
            case _:
                assert one.verdict == Verdict.UNDECIDED


@given(families)
def test_a_family_decides_no_more_than_each_claim_alone_and_no_less_than_bonferroni(
    family: list[tuple[float, float, float, float]],
) -> None:
    differences = [difference(delta, error, freedom) for delta, error, freedom, _ in family]
    margins = [margin for *_, margin in family]
    together = decide(differences, margins)
    for one, margin, both in zip(differences, margins, together, strict=True):
        assert both is not None
        own = [one.p, equivalence_p(one, margin)]
        for corrected, p in zip([both.p_difference, both.p_equivalence], own, strict=True):
            assert p <= corrected <= min(len(family) * p, 1.0) + 1e-12 or corrected >= max(own)


@given(sizes, errors, st.floats(2, 100), st.floats(0.005, 0.05))
def test_swapping_the_rows_swaps_the_verdict(delta: float, error: float, freedom: float, margin: float) -> None:
    swapped = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}
    one, other = (decide([difference(sign * delta, error, freedom)], [margin])[0] for sign in (1, -1))
    assert one is not None
    assert other is not None
    assert other.verdict == swapped.get(one.verdict, one.verdict)
