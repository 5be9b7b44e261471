"""Calibration on simulated studies: the share of 95% intervals that hold the truth, how often the paired test cries
wolf, and whether the promised power is met.

Verdicts of `problems` x `samples` under a few seeds; skill of a problem and luck of a seed are normal on the logit
scale. The promise is made as `tepo power` makes it: from the variances of pilot comparisons, for the gap that it says
is found with 80%.
Run: python perf/statistics_calibration.py
"""

from collections.abc import Callable

import numpy as np

from tepo.evaluation.statistics.intervals import Estimate, estimate
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


def main() -> None:
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


if __name__ == "__main__":
    main()
