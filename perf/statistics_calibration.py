"""How often a 95% interval holds the truth,
and how often the paired test cries wolf or finds a real gap, on simulated studies.

Verdicts of `problems` x `samples` under a few seeds;
skill of a problem and luck of a seed are normal on the logit scale.
Run: python perf/statistics_calibration.py
"""

import numpy as np

from tepo.evaluation.intervals import estimate

STUDIES, PROBLEMS, SAMPLES, GAP = 1000, 80, 4, 0.6


def study(seeds: int, luck: float, random: np.random.Generator) -> tuple[bool, bool, bool]:
    """(covered, false alarm, gap found) of one simulated study."""
    skill = 2 * random.standard_normal((1, PROBLEMS))

    def row(gap: float) -> np.ndarray:
        logit = skill + gap + luck * random.standard_normal((seeds, 1))
        return (random.random((seeds, PROBLEMS, SAMPLES)) < 1 / (1 + np.exp(-logit))[..., None]).mean(axis=2)

    base, same, better = row(0.0), row(0.0), row(GAP)
    alone = estimate({"b": base}, draws=300)
    return (
        alone.low <= 0.5 <= alone.high,
        estimate({"b": same - base}, draws=300).p < 0.05,
        estimate({"b": better - base}, draws=300).p < 0.05,
    )


def main() -> None:
    print(
        f"{STUDIES} studies of {PROBLEMS} problems x {SAMPLES} samples; gap {GAP} in logit\n"
        "seeds  luck  covered  false alarms  gap found"
    )
    for seeds in (1, 2, 3, 5):
        for luck in (0.0, 0.15, 0.3):
            random = np.random.default_rng(0)
            covered, alarm, found = np.mean([study(seeds, luck, random) for _ in range(STUDIES)], axis=0)
            print(f"{seeds:5}  {luck:4}  {100 * covered:6.1f}%  {100 * alarm:11.1f}%  {100 * found:8.1f}%")


if __name__ == "__main__":
    main()
