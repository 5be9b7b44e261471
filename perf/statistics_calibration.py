"""Calibration with luck that is not normal: how often a verdict errs on simulated studies with the variances of the
registered claims. Some runs of a row are bad, and the row is raised until both rows have one mean: the null hypothesis
is that the expected accuracies are equal. Rows that both have bad runs have one distribution of runs. (Normal luck:
tests/unit/evaluation.)

Run: python perf/statistics_calibration.py
"""

from dataclasses import dataclass

import numpy as np

from tepo.evaluation.statistics.intervals import Tails

MARGIN = 0.02  # of equivalence
FAMILIES = np.array((1, 15, 40))
ITEMS, ITEM, REST = 1400, 0.001, 0.06  # problems; variances of b and e of a difference (statistics.power)


@dataclass(frozen=True)
class Luck:
    """Luck of a run: normal, and with probability `bad` a loss drawn evenly from `loss`, in one row or in both.
    `deviation`, `loss`: accuracy, in shares. A row is raised by what its bad runs lose on average."""

    name: str
    bad: float = 0.0
    loss: tuple[float, float] = (0.1, 0.2)
    both: bool = False
    deviation: float = 0.02

    def runs(self, shape: tuple[int, int], bad: float, random: np.random.Generator) -> np.ndarray:
        """Accuracies, less their mean."""
        lost = np.where(random.random(shape) < bad, random.uniform(*self.loss, shape), 0.0)
        return self.deviation * random.standard_normal(shape) - lost + bad * sum(self.loss) / 2


NORMAL = Luck("normal, SD 2")
ONE_ROW = [
    *(Luck(f"{share:.0%} bad in one row, SD 2", share) for share in (0.05, 0.1, 0.15)),
    Luck("10% bad in one row, SD 1", 0.1, deviation=0.01),
]
COLLAPSE = Luck("10% collapse in one row, SD 2", 0.1, (0.55, 0.6))  # from 60% to between 0 and 5%
BOTH_ROWS = [
    Luck("10% bad in both rows, SD 2", 0.1, both=True),
    Luck("10% bad in both rows, SD 1", 0.1, both=True, deviation=0.01),
]
LUCKS = [NORMAL, *ONE_ROW, COLLAPSE, *BOTH_ROWS]


def studies_with(luck: Luck, seeds: int, studies: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(differences of two rows with equal means [studies, seeds], the estimated variance of each study's difference
    that is the problems'). Effects of problems and noise of samples are normal, so their mean and their estimated
    variance are drawn as such, without the single problems."""
    shape, noise = (studies, seeds), (REST / 2 / ITEMS) ** 0.5
    items = (ITEM / ITEMS) ** 0.5 * random.standard_normal((studies, 1))
    a = luck.runs(shape, luck.bad, random) + noise * random.standard_normal(shape) + items
    b = luck.runs(shape, luck.bad * luck.both, random) + noise * random.standard_normal(shape)
    return a - b, (ITEM + REST / seeds) / ITEMS * random.chisquare(ITEMS - 1, studies) / (ITEMS - 1)


def interval_test(differences: np.ndarray, problems: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One-sided p of each study, of "the difference is 0 or more" and of "0 or less": the test of the interval, `Tails`
    at mean / error, from the variances of seeds and problems as `estimate` has them."""
    of_seeds = differences.var(axis=1, ddof=1) / differences.shape[1]
    total = of_seeds + problems
    t = differences.mean(axis=1) / total**0.5
    tails = Tails(ITEMS - 1, differences.shape[1] - 1, of_seeds / total)
    return tails.below(t), tails.below(-t)


def errors(luck: Luck, seeds: int, studies: int) -> dict[str, np.ndarray]:
    """Shares of families of 1, 15 and 40 independent comparisons in which any errs at Holm's first step. false alarms:
    a difference where there is none; false equivalence: said to be within the margin where the gap is the margin, in
    the worse direction; refuted, held: "the gap is the margin at least" where it is the margin, each by a one-sided
    test at 5%."""
    differences, problems = studies_with(luck, seeds, studies, np.random.default_rng(seeds))
    low, high = interval_test(differences, problems)
    above = interval_test(differences + 2 * MARGIN, problems)[1]
    below = interval_test(differences - 2 * MARGIN, problems)[0]
    p = [2 * np.minimum(low, high), 2 * np.maximum(low, above), 2 * np.maximum(below, high), low, high]
    wrong = np.array([[(one < 0.05 / family).mean() for family in FAMILIES] for one in p])
    alarms, one_way, other_way, refuted, held = 1 - (1 - wrong) ** FAMILIES
    equivalence = np.maximum(one_way, other_way)
    return {"false alarms": alarms, "false equivalence": equivalence, "refuted": refuted, "held": held}


def coverage(deviation: float, seeds: int, studies: int) -> float:
    """Share of 95% intervals of a difference that contain the truth. deviation: of a run, in shares; luck is normal."""
    luck = Luck("normal", deviation=deviation)
    p = interval_test(*studies_with(luck, seeds, studies, np.random.default_rng(seeds)))
    return float((2 * np.minimum(*p) >= 0.05).mean())


def main(studies: int = 200_000) -> None:
    seeds, families = (3, 5, 8), " / ".join(map(str, FAMILIES))
    found = {luck.name: [errors(luck, n, studies) for n in seeds] for luck in LUCKS}
    print(f"The interval's test: errors in % of {studies} studies, families of {families}; margin {MARGIN:.0%}")
    for pair in (("false alarms", "false equivalence"), ("refuted", "held")):
        titles = [f'"at least the margin" {name}' if name == "refuted" else name for name in pair]
        columns = [f"{title}, {n} seeds" for title in titles for n in seeds]
        print(f"\n| luck | {' | '.join(columns)} |\n|{7 * '---|'}")
        for luck, by_seeds in found.items():
            cells = [" / ".join(f"{100 * rate:.1f}" for rate in one[name]) for name in pair for one in by_seeds]
            print(f"| {luck} | {' | '.join(cells)} |")
    print("\n95% intervals that contain the truth, in %, by the SD of runs in points:")
    for n in (2, *seeds):
        cells = [f"SD {100 * sd:g}: {100 * coverage(sd, n, studies):.1f}" for sd in (0.002, 0.005, 0.01, 0.02, 0.04)]
        print(f"{n} seeds: {', '.join(cells)}")


if __name__ == "__main__":
    main()
