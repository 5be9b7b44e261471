"""Calibration on simulated studies: the share of 95% intervals that hold the truth, how often the paired test cries
wolf, and whether the promised power is met; with luck that is normal, and with runs that go bad.

`normal`: verdicts of `problems` x `samples` under a few seeds; skill of a problem and luck of a seed are normal on the
logit scale. The promise is made as `tepo power` makes it: from the variances of pilot comparisons, for the gap that it
says is found with 80%.

`skewed`: accuracies of two rows with the variances of the registered claims. Some runs of a row are bad, and the row is
raised until both rows have one mean: the null hypothesis is that the expected accuracies are equal. The interval's test
stands beside alternatives. A rule, written before they were applied to any record, chooses among them (`chosen`).
Run: python perf/statistics_calibration.py [normal] [skewed]
"""

import functools
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from tepo.evaluation.statistics.intervals import Estimate, Tails, estimate
from tepo.evaluation.statistics.power import POWER, found_from, pooled, smallest, spread_of

STUDIES, PILOTS, PROBLEMS, SAMPLES, GAP, FAMILY = 4000, 200, 80, 4, 0.6, 8
SEEDS, LUCK = (1, 2, 3, 5, 8, 12), (0.0, 0.15, 0.3, 0.6)
Draw = Callable[[float], np.ndarray]


def rows(seeds: int, luck: float, random: np.random.Generator) -> Draw:
    """Draws rows x [S, P] of one study, given their gap in logit to the plain row."""
    skill = 2 * random.standard_normal((1, PROBLEMS))

    def row(gap: float) -> np.ndarray:
        right = 1 / (1 + np.exp(-(skill + gap + luck * random.standard_normal((seeds, 1)))))
        return random.binomial(SAMPLES, right) / SAMPLES

    return row


def judged(x: np.ndarray) -> Estimate:
    return estimate({"b": x}, draws=20)  # its p and its error need no bootstrap


def study(seeds: int, luck: float, random: np.random.Generator) -> tuple[bool, bool, float, bool]:
    """(covered, false alarm, false alarms of a family of FAMILY at its first step, gap found) of one study."""
    row = rows(seeds, luck, random)
    base, same, better = row(0.0), row(0.0), row(GAP)
    alone = estimate({"b": base}, draws=300)
    alarm, found = judged(same - base).p, judged(better - base).p
    return alone.low <= 0.5 <= alone.high, alarm < 0.05, FAMILY * (alarm < 0.05 / FAMILY), found < 0.05


def promise(seeds: int, luck: float, random: np.random.Generator) -> tuple[float, float]:
    """(smallest difference that is said to be found with 80%, how often a gap of that size is found)."""
    gap = promised = 0.0
    for _ in range(3):  # until the pilots' gap is the promised one: on the logit scale the variances depend on it
        pilots = [rows(seeds, luck, random) for _ in range(PILOTS)]
        spread = pooled([one for row in pilots if (one := spread_of({"b": row(gap) - row(0.0)}, None))])
        promised = smallest(found_from(spread, seeds))
        gap = gap_for(promised, luck)
    found = 0
    for _ in range(STUDIES):
        row = rows(seeds, luck, random)
        one = judged(row(gap) - row(0.0))
        found += one.p < 0.05 and one.mean > 0
    return promised, found / STUDIES


def gap_for(difference: float, luck: float) -> float:
    """The gap in logit whose mean difference in shares is `difference`."""
    random = np.random.default_rng(1)
    logit = 2 * random.standard_normal(200_000) + luck * random.standard_normal(200_000)
    gaps = np.linspace(0, 3, 61)
    gained = [(1 / (1 + np.exp(-(logit + gap)))).mean() - (1 / (1 + np.exp(-logit))).mean() for gap in gaps]
    return float(np.interp(difference, gained, gaps))


# luck that is not normal ---------------------------------------------------------------------------------------------

MARGIN, FOUND = 0.02, 0.04  # of equivalence; the gap whose detection is counted
FAMILIES = (1, 15, 40)
ITEMS, ITEM, REST = 1400, 0.001, 0.06  # problems; variances of b and e of a difference (tepo.evaluation.statistics.power)
CHUNK = 1000


@dataclass(frozen=True)
class Luck:
    """Luck of a run: normal, and with probability `bad` a loss drawn evenly from `loss`, in the first row or in both.
    `deviation`, `loss`: accuracy, in shares. The first row is raised by what its bad runs lose on average, where the
    other has none."""

    name: str
    bad: float = 0.0
    loss: tuple[float, float] = (0.1, 0.2)
    both: bool = False
    deviation: float = 0.02

    def runs(self, shape: tuple[int, int], random: np.random.Generator, good: bool = False) -> np.ndarray:
        """Accuracies, less their mean. good: without bad runs."""
        usual = self.deviation * random.standard_normal(shape)
        lost = np.where(random.random(shape) < (0.0 if good else self.bad), random.uniform(*self.loss, shape), 0.0)
        return usual - lost + (0.0 if good else self.bad * sum(self.loss) / 2)


ONE_SIDED = [Luck(f"{share:.0%} bad in one row", share) for share in (0.05, 0.1, 0.15)]
LUCKS = [
    Luck("normal"),
    *ONE_SIDED,
    Luck("10% collapse in one row", 0.1, (0.55, 0.6)),  # from 60% to between 0 and 5%
    Luck("10% bad in both rows", 0.1, both=True),
]
QUIET = [Luck(f"{one.name}, quiet", one.bad, one.loss, one.both, 0.01) for one in LUCKS]


@dataclass(frozen=True)
class Studies:
    """Studies with the same number of seeds. a, b: accuracies of the two rows [studies, seeds]; problems: the estimated
    variance of the difference that is the problems' [studies], as `estimate` finds it."""

    a: np.ndarray
    b: np.ndarray
    problems: np.ndarray

    @property
    def differences(self) -> np.ndarray:
        return self.a - self.b

    def moved(self, gap: float) -> "Studies":
        """The same with a further gap between the rows."""
        return Studies(self.a + gap, self.b, self.problems)


def studies_with(luck: Luck, seeds: int, studies: int, random: np.random.Generator) -> Studies:
    """Studies of two rows with equal means. Effects of problems and noise of samples are normal, so their mean and
    their estimated variance are drawn as such, without the single problems."""
    shape = (studies, seeds)
    noise = (REST / 2 / ITEMS) ** 0.5
    items = (ITEM / ITEMS) ** 0.5 * random.standard_normal((studies, 1))
    a = luck.runs(shape, random) + noise * random.standard_normal(shape) + items
    b = luck.runs(shape, random, good=not luck.both) + noise * random.standard_normal(shape)
    problems = (ITEM + REST / seeds) / ITEMS * random.chisquare(ITEMS - 1, studies) / (ITEMS - 1)
    return Studies(a, b, problems)


P = tuple[np.ndarray, np.ndarray]  # one-sided p of each study: of "the difference is 0 or more", "0 or less"


def interval_test(x: Studies) -> P:
    """The test of the interval: its error and its tails from seeds and problems."""
    d = x.differences
    of_seeds = d.var(axis=1, ddof=1) / d.shape[1]
    total = of_seeds + x.problems
    t = d.mean(axis=1) / total**0.5
    tails = Tails(ITEMS - 1, d.shape[1] - 1, of_seeds / total)
    return tails.below(t), tails.below(-t)


def sign_flips(x: Studies) -> P:
    """All sign flips of the seeds' differences: exact where a difference is symmetric about its middle."""
    return _flipped(x.differences)


def signed_ranks(x: Studies) -> P:
    """Wilcoxon's signed ranks, by all sign flips: exact for the same hypothesis."""
    d = x.differences
    return _flipped(np.sign(d) * (np.abs(d).argsort(axis=1).argsort(axis=1) + 1))


def _flipped(d: np.ndarray) -> P:
    signs = np.array(list(itertools.product((1, -1), repeat=d.shape[1]))).T
    sums, seen = d @ signs, d.sum(axis=1, keepdims=True)
    return (sums <= seen + 1e-9).mean(axis=1), (sums >= seen - 1e-9).mean(axis=1)


def rows_exchanged(x: Studies) -> P:
    """All ways to deal the runs of both rows to the rows: exact where the rows have one distribution of runs."""
    runs, seeds = np.hstack([x.a, x.b]), x.a.shape[1]
    dealt = np.array([[i in chosen for i in range(2 * seeds)] for chosen in _deals(seeds)], dtype=float).T
    sums, seen = runs @ dealt, x.a.sum(axis=1, keepdims=True)
    return (sums <= seen + 1e-9).mean(axis=1), (sums >= seen - 1e-9).mean(axis=1)


@functools.cache
def _deals(seeds: int) -> list[frozenset[int]]:
    return [frozenset(chosen) for chosen in itertools.combinations(range(2 * seeds), seeds)]


def trimmed(x: Studies) -> P:
    """Yuen's t of the mean without the lowest and the highest fifth, its error from the winsorised differences."""
    d = np.sort(x.differences, axis=1)
    seeds = d.shape[1]
    cut = int(0.2 * seeds)
    kept = d[:, cut : seeds - cut]
    winsorised = np.clip(d, kept[:, :1], kept[:, -1:])
    size = kept.shape[1]
    error = winsorised.std(axis=1, ddof=1) * ((seeds - 1) / (size * (size - 1))) ** 0.5
    t = kept.mean(axis=1) / error
    return stdtr(size - 1, t), stdtr(size - 1, -t)


def bootstrap_t(x: Studies) -> P:
    """The t of the seeds' differences beside those of 1,999 resamples of them."""
    d = x.differences
    seeds = d.shape[1]
    counts = np.random.default_rng(0).multinomial(seeds, [1 / seeds] * seeds, 1999).T
    means = d @ counts / seeds
    deviations = (np.maximum(d**2 @ counts / seeds - means**2, 1e-12) / (seeds - 1)) ** 0.5
    mean = d.mean(axis=1, keepdims=True)
    drawn, seen = (means - mean) / deviations, mean / (d.std(axis=1, ddof=1, keepdims=True) / seeds**0.5)
    return ((drawn <= seen).sum(axis=1) + 1) / 2000, ((drawn >= seen).sum(axis=1) + 1) / 2000


TESTS: dict[str, Callable[[Studies], P]] = {
    "interval": interval_test,
    "sign flips": sign_flips,
    "signed ranks": signed_ranks,
    "rows exchanged": rows_exchanged,
    "trimmed mean": trimmed,
    "bootstrap t": bootstrap_t,
}


@dataclass(frozen=True)
class Errors:
    """Shares of studies. alarms: a difference where there is none, by family; equivalent: said to be within the margin
    where the gap is the margin, by family, in the worse direction; refuted, holds: of "the gap is at least the margin"
    where it is the margin, each by a one-sided test at 5%; found: a gap of FOUND, family of one."""

    alarms: tuple[float, ...]
    equivalent: tuple[float, ...]
    refuted: float
    holds: float
    found: float


def errors(test: Callable[[Studies], P], luck: Luck, seeds: int, studies: int) -> Errors:
    random = np.random.default_rng([seeds, studies])
    parts = []
    for _ in range(0, studies, CHUNK):
        x = studies_with(luck, seeds, CHUNK, random)
        low, high = test(x)
        above, below = test(x.moved(2 * MARGIN))[1], test(x.moved(-2 * MARGIN))[0]
        two_sided, inside = 2 * np.minimum(low, high), 2 * np.array([np.maximum(low, above), np.maximum(below, high)])
        found = 2 * test(x.moved(FOUND))[1]
        alarms = [(two_sided < 0.05 / family).mean() for family in FAMILIES]
        within = [(inside < 0.05 / family).mean(axis=1) for family in FAMILIES]
        parts.append((alarms, within, (low < 0.05).mean(), (high < 0.05).mean(), (found < 0.05).mean()))
    alarms, within, refuted, holds, found = (np.mean(part, axis=0) for part in zip(*parts, strict=True))
    return Errors(in_families(alarms), in_families(within.max(axis=1)), float(refuted), float(holds), float(found))


def in_families(rates: np.ndarray) -> tuple[float, ...]:
    """Families with any error at Holm's first step, their comparisons independent. rates: of one, by family."""
    return tuple(float(1 - (1 - rate) ** family) for rate, family in zip(rates, FAMILIES, strict=True))


def chosen(studies: int) -> str | None:
    """The second reading, by a rule: the alternative that with eight seeds and a family of one holds 5%, within two
    standard errors of the simulation, in every cell with 5 to 15% bad runs in one row; of several, the one that finds
    a gap of FOUND most often under normal luck."""
    limit = 0.05 + 2 * (0.05 * 0.95 / studies) ** 0.5
    cells = [luck for luck in (*ONE_SIDED, *QUIET) if luck.bad and not luck.both and luck.loss[1] < 0.5]
    held = [
        name
        for name, test in TESTS.items()
        if name != "interval" and all(errors(test, luck, 8, studies).alarms[0] <= limit for luck in cells)
    ]
    return max(held, key=lambda name: errors(TESTS[name], LUCKS[0], 8, studies).found, default=None)


def skewed(studies: int = 50_000) -> None:
    families = " / ".join(map(str, FAMILIES))
    print(
        f"{studies} studies a line; a family errs where any comparison does: {families}; margin {MARGIN:.0%}, gap "
        f"{FOUND:.0%}\ntest  seeds  luck  false alarms  false equivalence  false refuted  false holds  gap found"
    )
    for name, test in TESTS.items():
        for seeds in (3, 5, 8) if name == "interval" else (8,):
            for luck in (*LUCKS, *QUIET):
                one = errors(test, luck, seeds, studies)
                alarms, equal = (" / ".join(f"{rate:.1%}" for rate in part) for part in (one.alarms, one.equivalent))
                print(
                    f"{name:14}  {seeds}  {luck.name:31}  {alarms:24}  {equal:24}  {one.refuted:6.1%}  {one.holds:6.1%}"
                    f"  {one.found:6.1%}",
                    flush=True,
                )
    print(f"second reading by the rule: {chosen(studies)}")


def normal() -> None:
    print(
        f"{STUDIES} studies of {PROBLEMS} problems x {SAMPLES} samples; gap {GAP} in logit; power: of the difference "
        f"that {PILOTS} pilots say is found with {POWER:.0%}\n"
        f"seeds  luck  covered  false alarms  of {FAMILY}, at most  gap found  smallest difference  power"
    )
    for seeds in SEEDS:
        for luck in LUCK:
            random = np.random.default_rng(0)
            covered, alarm, family, found = np.mean([study(seeds, luck, random) for _ in range(STUDIES)], axis=0)
            text = f"{seeds:5}  {luck:4}  {covered:7.1%}  {alarm:12.1%}  {min(family, 1):13.1%}  {found:9.1%}"
            if seeds > 1:  # one seed says nothing about the spread of seeds
                promised, power = promise(seeds, luck, random)
                text += f"  {100 * promised:12.1f} points  {power:5.1%}"
            print(text, flush=True)


def main() -> None:
    parts = {"normal": normal, "skewed": skewed}
    for name in sys.argv[1:] or parts:
        parts[name]()


if __name__ == "__main__":
    main()
