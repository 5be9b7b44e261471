import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tepo.common.errors import UserError
from tepo.evaluation.scores import majority, pass_at_k, score
from tepo.evaluation.statistics.answer import Question, answers
from tepo.evaluation.statistics.intervals import Estimate, Tails, estimate, estimate_share
from tepo.evaluation.statistics.samples import AVERAGE, MEAN, summarize
from tepo.evaluation.statistics.verdict import DeltaVerdict, holm
from tepo.store.samples_file import table_of
from tests.support.answers import compare


def frame(row, benchmark, correct, seeds=None):
    """Samples from correct [S, P, K]."""
    s, p, _ = np.indices(correct.shape).reshape(3, -1)
    problems = [f"{benchmark}-{i}" for i in p]
    table = pd.DataFrame({"seed": np.array(seeds or range(len(correct)))[s], "problem": problems})
    return table.assign(row=row, benchmark=benchmark, right=correct.ravel().astype(int), samples=1)


def draw(random, seeds, problems, samples, spread_seed, spread_problem):
    """Verdicts of a crossed design on the logit scale."""
    logit = spread_seed * random.standard_normal((seeds, 1)) + spread_problem * random.standard_normal((1, problems))
    return random.random((seeds, problems, samples)) < 1 / (1 + np.exp(-logit))[..., None]


@pytest.mark.parametrize(("n", "k"), [(4, 1), (5, 2), (6, 3), (6, 6), (32, 8)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n, k):
    for right in range(n + 1):
        assert pass_at_k(n, right, k) == pytest.approx(1 - stats.hypergeom(n, right, k).pmf(0), abs=1e-12)


@pytest.mark.parametrize(
    ("answers", "correct", "expected"),
    [
        (["1", "1", "2"], [True, True, False], 1.0),
        (["1/2", "0.5", "7", "7"], [True, True, False, False], 0.5),
        ([None, None, "3"], [False, False, False], 0.0),
        ([None, "3"], [False, True], 1.0),
        (["8", "8 ", "3"], [False, False, True], 0.0),
        ([None, None], [False, False], 0.0),
    ],
)
def test_majority_counts_right_answers_as_one_and_splits_ties(answers, correct, expected):
    assert majority(answers, correct) == expected


def samples(k, responses):
    """A table of samples from problem -> its (answer, correct, finish, tokens), k of them."""
    return table_of(
        {"problem": name, "sample": i, "extracted": answer, "correct": right, "finish": finish, "tokens": tokens}
        for name, rows in responses.items()
        for i, (answer, right, finish, tokens) in enumerate(rows[:k])
    )


def test_scores_by_hand():
    """Three of six right, one of six, none of six; the gold wins the vote on the first alone."""
    no, cut = ("7", False, "stop", 3), (None, False, "length", 9)
    table = samples(6, {"b": [("1", True, "stop", 2)] * 3 + [no, no, cut], "a": [("2", True, "stop", 4)] + [no] * 5,
                        "c": [no, cut, cut, cut, cut, cut]})  # fmt: skip
    found = score(table)
    assert list(found) == ["avg@6", "pass@2", "pass@4", "pass@6", "maj@6", "truncated", "mean_tokens"]
    assert found["avg@6"] == pytest.approx(4 / 18)
    assert found["pass@2"] == pytest.approx(((1 - 3 / 15) + (1 - 10 / 15) + 0) / 3)  # C(3,2), C(5,2) of C(6,2)
    assert found["pass@4"] == pytest.approx((1 + (1 - 5 / 15) + 0) / 3)  # C(5,4) of C(6,4)
    assert found["pass@6"] == pytest.approx(2 / 3)
    assert found["maj@6"] == pytest.approx(1 / 3)
    assert found["truncated"] == pytest.approx(6 / 18)
    assert found["mean_tokens"] == pytest.approx((6 + 6 + 9 + 4 + 15 + 3 + 45) / 18)
    assert list(score(samples(1, {"a": [no], "b": [cut]}))) == ["avg@1", "truncated", "mean_tokens"]
    assert [name for name in score(samples(4, {"a": [no] * 4})) if "pass" in name] == ["pass@2", "pass@4"]
    with pytest.raises(UserError, match="different numbers of samples"):
        score(samples(6, {"a": [no] * 2, "b": [no] * 3}))


def test_holm_rejects_what_the_step_down_procedure_rejects():
    random = np.random.default_rng(0)
    for _ in range(200):
        p = np.round(random.random(6) ** 3, 3)
        adjusted = holm(p)
        for level in (0.01, 0.05, 0.3):
            fails = np.sort(p) > level / np.arange(6, 0, -1)
            rejected = p < np.sort(p)[fails.argmax()] if fails.any() else np.ones(6, dtype=bool)
            assert ((adjusted <= level) == rejected).all()


def test_one_seed_is_students_test_and_two_benchmarks_are_welchs():
    """The mean of two benchmarks is 0 where one's mean is minus the other's: scipy's test of unequal variances."""
    random = np.random.default_rng(11)
    a, b = random.normal(0.2, 1.0, 12), random.normal(0.3, 3.0, 17)
    one, two = estimate({"a": a[None]}), estimate({"a": a[None], "b": b[None]})
    assert (one.p, one.tails.problems) == pytest.approx((stats.ttest_1samp(a, 0).pvalue, 11), rel=1e-9)
    welch = stats.ttest_ind(a, -b, equal_var=False)
    assert (two.p, two.tails.problems) == pytest.approx((welch.pvalue, welch.df), rel=1e-9)
    single = estimate({"a": a[None], "c": np.array([[0.5]])})  # one problem has no spread of its own
    assert (single.error, single.tails.problems) == pytest.approx((one.error / 2, 11))


@pytest.mark.parametrize(("value", "p"), [(0.0, 1.0), (0.25, 0.0), (-0.25, 0.0)])
def test_a_difference_that_never_varies_is_none_or_certain(value, p):
    found = estimate({"b": np.full((2, 20), value)})
    assert (found.mean, found.low, found.high, found.half, found.p) == (value, value, value, 0.0, p)


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.4, 0.45, 0.6, 2.0])
@pytest.mark.parametrize("seeds", [[0.0], [-0.5, 0.1, 0.4], [-0.5, 0.0, 0.05, 0.1, 0.35], [-3.0, 0.4, 0.5, 0.5, 0.6]])
def test_the_interval_of_a_difference_leaves_out_zero_where_its_p_is_below_five_percent(
    seeds: list[float], shift: float
) -> None:
    """By hand: the two-sided p of each part's own t, weighted by its share of the variance. The shape of a bootstrap
    left out 0 at p = .059."""
    x = np.add.outer(seeds, [-1.0, 0.0, 0.2, 0.8] * 3) + shift
    found, count = estimate({"b": x}), len(seeds)
    of_seeds = np.var(seeds, ddof=1) / count if count > 1 else 0.0
    of_problems = np.var(x.mean(axis=0), ddof=1) / 12
    t = abs(x.mean()) / (of_seeds + of_problems) ** 0.5
    share = of_seeds / (of_seeds + of_problems)
    p = 2 * (share * stats.t.sf(t, max(count - 1, 1)) + (1 - share) * stats.t.sf(t, 11))
    assert found.p == pytest.approx(p)
    assert (found.low <= 0 <= found.high) == (p >= 0.05)
    assert (found.low + found.high) / 2 == pytest.approx(found.mean)
    assert [estimate({"b": x - end}).p for end in (found.low, found.high)] == pytest.approx([0.05, 0.05])


@pytest.mark.parametrize(
    "x", [np.zeros((1, 1)), np.full((1, 2), 0.25), np.array([[0.5, 1.0]]), np.random.default_rng(0).random((3, 9))]
)
def test_too_few_problems_have_no_interval(x):
    """±0.00 from one problem and ±162 from two were both nonsense."""
    found = estimate_share({"b": x})
    assert found.mean == pytest.approx(x.mean())
    assert np.isnan([found.low, found.high, found.half, found.error, found.p]).all()
    assert np.isnan(summarize(frame("r", "b", x[..., None] > 0.5))["half"]).all()


@pytest.mark.parametrize(("problems", "all_right"), [(10, 0.6915), (200, 0.9817)])
def test_all_right_or_all_wrong_is_not_certain(problems, all_right):
    """scipy's exact interval of the share, one trial a problem."""
    exact = stats.binomtest(problems, problems).proportion_ci(0.95, method="exact").low
    assert exact == pytest.approx(all_right, abs=1e-4)
    right, wrong = estimate_share({"b": np.ones((2, problems))}), estimate_share({"b": np.zeros((2, problems))})
    assert (right.low, right.high, wrong.low, wrong.high) == pytest.approx((exact, 1, 0, 1 - exact))
    halves = {"a": np.ones((1, problems // 2)), "b": np.ones((1, problems // 2))}
    assert estimate_share(halves, {"a": 3.0, "b": 1.0}).low == pytest.approx(exact)


def test_standard_error_adds_seeds_and_problems():
    random = np.random.default_rng(2)
    a, b = 0.3 * random.standard_normal((5, 80)) + 0.4 * random.standard_normal((5, 1)), random.standard_normal((5, 30))
    found = estimate({"a": a, "b": b}, {"a": 3.0, "b": 1.0})
    joint = 0.75 * a.mean(1) + 0.25 * b.mean(1)
    assert found.mean == pytest.approx(joint.mean())
    seeds, problems = stats.sem(joint) ** 2, (0.75 * stats.sem(a.mean(0))) ** 2 + (0.25 * stats.sem(b.mean(0))) ** 2
    assert found.error**2 == pytest.approx(seeds + problems)
    freedom = problems**2 / ((0.75 * stats.sem(a.mean(0))) ** 4 / 79 + (0.25 * stats.sem(b.mean(0))) ** 4 / 29)
    share, t = seeds / (seeds + problems), found.mean / found.error
    assert found.p == pytest.approx(2 * (share * stats.t.sf(abs(t), 4) + (1 - share) * stats.t.sf(abs(t), freedom)))
    assert found.half == pytest.approx(found.tails.quantile(0.975) * found.error)


@pytest.mark.parametrize(("seeds", "spread_seed"), [(1, 0.0), (3, 0.0), (3, 0.15), (5, 0.4)])
def test_intervals_cover(seeds, spread_seed):
    """95% intervals hold the truth at least 92% of the time
    (400 studies: 92.8% would be two standard errors low), wide or narrow seeds."""
    random = np.random.default_rng(3)
    truth = draw(random, 3000, 3000, 1, spread_seed, 1.5).mean()
    hits = 0
    for _ in range(400):
        found = estimate_share({"b": draw(random, seeds, 60, 4, spread_seed, 1.5).mean(axis=2)}, draws=300)
        hits += found.low <= truth <= found.high
    assert 0.92 <= hits / 400 <= 0.995


def test_a_table_holds_the_estimates_of_its_own_rows():
    """Two rows, one with more seeds. Ten problems, so that their order is that of their names."""
    random = np.random.default_rng(10)
    long, short = random.random((2, 10, 4)) < 0.4, random.random((2, 10, 2)) < 0.7
    other = random.random((1, 10, 4)) < 0.4, random.random((1, 10, 3)) < 0.7
    parts = [frame("one", "long", long), frame("one", "short", short)]
    parts += [frame("two", "long", other[0]), frame("two", "short", other[1])]
    table = summarize(pd.concat(parts), draws=50).set_index(["row", "benchmark"])
    for row, a, b in (("one", long, short), ("two", *other)):
        cells, samples = {"long": a.mean(2), "short": b.mean(2)}, {"long": a[0].size, "short": b[0].size}
        for name, kept, weights, problems, count in (
            ("long", {"long": cells["long"]}, None, 10, a.size),
            ("short", {"short": cells["short"]}, None, 10, b.size),
            (AVERAGE, cells, samples, 20, a.size + b.size),
            (MEAN, cells, None, 20, a.size + b.size),
        ):
            found, line = estimate_share(kept, weights, draws=50), table.loc[row, name]
            assert tuple(line[["mean", "low", "high", "half"]]) == (found.mean, found.low, found.high, found.half)
            assert tuple(line[["seeds", "problems", "samples"]]) == (len(a), problems, count)
    pd.testing.assert_frame_equal(summarize(pd.concat(parts)), summarize(pd.concat(parts), draws=2000))


def test_a_family_counts_what_was_not_measured_and_what_two_seeds_gave():
    """A verdict must not be lost when the rows that lack come, nor rest on a p that two seeds made."""
    known = [rising(0.011, 3), rising(0.03, 3)]
    first, second, third = answers([*known, rising(1e-9, 2)], family=5)
    assert (first.p, second.p) == pytest.approx((0.055, 0.12))
    assert np.isnan(third.p)
    words = [one.verdict for one in (first, second, third)]
    assert words == [DeltaVerdict.NOT_DECIDED, DeltaVerdict.NOT_DECIDED, DeltaVerdict.NO_VERDICT]
    assert [one.p for one in answers([*known, rising(1e-9, 2)])][:2] == pytest.approx([0.033, 0.06])
    later = answers([*known, rising(0.9, 3)], family=5)
    assert [one.p for one in later[:2]] == [first.p, second.p]


def rising(p: float, seeds: int) -> Question:
    """A difference above 0 whose own p is this, over seeds."""
    tails = Tails(50.0)
    estimate = Estimate.symmetric(-float(tails.quantile(p / 2)), 1.0, tails)
    return Question("a", "b", AVERAGE, estimate, (0.1,) * seeds, fewest=3)


def test_compare_uses_the_seeds_both_have():
    random = np.random.default_rng(9)
    base, other = random.random((3, 20, 2)) < 0.5, random.random((2, 20, 2)) < 0.5
    (found,) = compare(
        pd.concat([frame("base", "b", base), frame("other", "b", other, seeds=[1, 2])]), "base", on=("b",)
    )
    assert len(found.question.sample) == 2
    assert found.delta == pytest.approx(other.mean() - base[1:].mean())


def test_compare_weighs_samples_or_benchmarks():
    random = np.random.default_rng(12)
    rows = {name: (random.random((2, 10, 4)) < 0.4, random.random((2, 10, 1)) < 0.7) for name in ("base", "other")}
    table = pd.concat([frame(name, b, x) for name, pair in rows.items() for b, x in zip("ab", pair, strict=True)])
    found = compare(table, "base", on=("b", AVERAGE, MEAN))
    (a, b), (c, d) = ([x.mean(2) for x in rows[name]] for name in ("other", "base"))
    cells = {"a": a - c, "b": b - d}
    every = estimate({"b": cells["b"]}), estimate(cells, {"a": 4, "b": 1}), estimate(cells)
    for line, expected in zip(found, every, strict=True):
        numbers = (expected.mean, expected.low, expected.high, expected.p)
        assert (line.delta, *line.interval, line.question.estimate.p) == pytest.approx(numbers)


@pytest.mark.parametrize("baseline", ["full", "half"])
def test_rows_that_do_not_share_a_benchmark_or_its_problems_are_not_comparable(baseline):
    random = np.random.default_rng(13)
    parts = [frame("full", name, random.random((1, 12, 2)) < 0.5) for name in ("a", "b")]
    table = pd.concat([*parts, frame("half", "a", random.random((1, 11, 2)) < 0.5)])
    found = compare(table, baseline, on=("a", "b", AVERAGE, MEAN))
    assert {one.verdict for one in found} == {DeltaVerdict.NOT_COMPARABLE}
    assert np.isnan([(one.delta, *one.interval, one.question.estimate.p, one.p) for one in found]).all()
    assert {one.question.sample for one in found} == {()}


def test_bad_frames_are_explained():
    good, other = (frame("r", "b", np.ones((1, problems, 1), dtype=bool), seeds=[3 - problems]) for problems in (3, 2))
    with pytest.raises(UserError, match="did you mean 'r'"):
        compare(good, "rr", on=("b",))
    with pytest.raises(UserError, match="different problems"):
        summarize(pd.concat([good, other]))
