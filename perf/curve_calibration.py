"""Error rates of the verdicts on compute curves, by simulation: the share of intervals of a fitted ceiling that hold
the truth, of correct fits that are not trusted, and of equal rows that are said to differ.

A study has validation problems of very different difficulty, the same under every seed and at every score, with a few
samples each. Seeds differ in their ceiling and their speed, and a run wanders about its curve: its score deviates by
WANDER, with neighbours correlated. The true ceiling is that of the population of seeds and problems.
Run: python perf/curve_calibration.py
"""

import sys

import numpy as np

from tepo.evaluation.statistics.scaling_comparison import CurveRule, CurveVerdict, RunCurve, compare_rows, fit_row
from tepo.evaluation.statistics.scaling_fit import Curve

STUDIES = int(sys.argv[1]) if len(sys.argv) > 1 else 400
BENCHMARKS, PROBLEMS, SAMPLES = 7, 50, 4
COMPUTE = np.arange(1, 37) * 12_000.0
START, CEILING, MIDDLE, STEEPNESS = 0.34, 0.8, 30_000.0, 1.2
SPREAD = 1.5  # of problems, in logit of their ceilings
LUCK = ((0.0, 0.0), (0.01, 0.1), (0.03, 0.3))  # SD over seeds: of the ceiling, of log C_mid
WANDER, CORRELATION = 0.005, 0.5
RULE = CurveRule(margin=0.03, factor=1.5, share=0.9)
SHIFT = 2.0  # mean logit of a problem's ceiling; the true mean ceiling follows from it


def population_ceiling() -> float:
    logit = SHIFT + SPREAD * np.random.default_rng(1).standard_normal(1_000_000)
    return float((1 / (1 + np.exp(-logit))).mean())


def wander(random: np.random.Generator) -> np.ndarray:
    steps = random.standard_normal(len(COMPUTE))
    for i in range(1, len(steps)):
        steps[i] = CORRELATION * steps[i - 1] + (1 - CORRELATION**2) ** 0.5 * steps[i]
    return WANDER * steps


def problems(random: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Share right of each problem of each benchmark: untrained, and at the end of training."""
    ends = [1 / (1 + np.exp(-(SHIFT + SPREAD * random.standard_normal(PROBLEMS)))) for _ in range(BENCHMARKS)]
    return [(random.beta(1, 1 / START - 1, PROBLEMS) * end / CEILING, end) for end in ends]


def run(of: list[tuple[np.ndarray, np.ndarray]], luck: tuple[float, float], random: np.random.Generator) -> RunCurve:
    """One seed: every problem goes from its start to its end along the same saturating curve."""
    ceiling, speed = luck[0] * random.standard_normal(), np.exp(luck[1] * random.standard_normal())
    share = np.concatenate([[0], 1 / (1 + (speed * MIDDLE / COMPUTE) ** STEEPNESS)])
    noise = np.concatenate([[0], wander(random)])
    cells = {}
    for index, (start, end) in enumerate(of):
        way = (end - start)[None] + ceiling * (4 * end * (1 - end))[None] / np.mean(4 * end * (1 - end))
        right = start[None] + share[:, None] * way + noise[:, None]
        cells[f"b{index}"] = random.binomial(SAMPLES, np.clip(right, 0, 1)) / SAMPLES
    mean = np.mean([x.mean(axis=1) for x in cells.values()], axis=0)
    return RunCurve(Curve(float(mean[0]), COMPUTE, mean[1:]), cells)


def study(seeds: int, luck: tuple[float, float], truth: float, random: np.random.Generator) -> list[float]:
    """Simulate two equal rows. Returns [A covered, its half-width, C covered, not trusted, said to differ in ceiling,
    in speed, the same]."""
    of = problems(random)
    runs = {name: {seed: run(of, luck, random) for seed in range(seeds)} for name in ("base", "other")}
    rows = {name: fit_row(part, RULE) for name, part in runs.items()}
    base = rows["base"]
    compute = np.log(MIDDLE) + np.log(RULE.share / (1 - RULE.share)) / STEEPNESS
    trusted = {name: row if not row.doubt else None for name, row in rows.items()}
    verdict = compare_rows(rows, runs, {"other": "base"}, RULE)["other"].verdict
    return [
        base.ceiling.low <= truth <= base.ceiling.high,
        base.ceiling.half,
        base.log_compute.low <= compute <= base.log_compute.high,
        trusted["base"] is None,
        verdict in (CurveVerdict.HIGHER, CurveVerdict.LOWER),
        verdict in (CurveVerdict.FASTER, CurveVerdict.SLOWER),
        verdict is CurveVerdict.SAME,
    ]


def main() -> None:
    truth = population_ceiling()
    print(
        f"{STUDIES} studies of {BENCHMARKS} x {PROBLEMS} problems x {SAMPLES} samples, {len(COMPUTE)} scores a run; "
        f"true ceiling {truth:.3f}; two equal rows, margin {100 * RULE.margin:g} points, factor {RULE.factor:g}\n"
        "seeds  SD of A, log C  A covered  half-width  C covered  not trusted  ceilings differ  speeds differ  the same"
    )
    for seeds in (1, 3, 5, 8):
        for luck in LUCK if seeds > 1 else LUCK[:1]:
            random = np.random.default_rng(0)
            a, half, c, doubt, ceiling, speed, same = np.mean(
                [study(seeds, luck, truth, random) for _ in range(STUDIES)], axis=0
            )
            print(
                f"{seeds:5}  {luck[0]:7}, {luck[1]:5}  {a:9.1%}  {100 * half:10.1f}  {c:9.1%}  {doubt:11.1%}  "
                f"{ceiling:15.1%}  {speed:13.1%}  {same:8.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
