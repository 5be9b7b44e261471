"""Higher, lower, faster, slower, the same, undecided: simulated curves whose truth is known."""

import numpy as np
import pytest

from tepo.evaluation.statistics.scaling_comparison import (
    CurveRule,
    CurveVerdict,
    RowFit,
    RunCurve,
    compare_rows,
    fit_row,
)
from tepo.evaluation.statistics.scaling_fit import Curve
from tepo.reporting.tables.scaling_table import CurveRow, curve_block

COMPUTE = np.arange(1, 37) * 10_000.0
RULE = CurveRule(margin=0.05, factor=1.5, share=0.5)
PROBLEMS, SAMPLES = 800, 4
SKILL = np.random.default_rng(0).uniform(-0.2, 0.2, (1, PROBLEMS))
EIGHT = range(8)  # three decide little in a family of ten


def run(seed: int, ceiling: float, middle: float) -> RunCurve:
    """Problems of very different difficulty, the same ones under every seed; as many samples of each at every score."""
    share = 1 / (1 + (middle / COMPUTE[:, None]) ** 1.5)
    right = np.concatenate([np.full((1, PROBLEMS), 0.3), 0.3 + (ceiling + SKILL - 0.3) * share])
    x = np.random.default_rng([1, seed, int(1000 * ceiling)]).binomial(SAMPLES, right) / SAMPLES
    return RunCurve(Curve(x[0].mean(), COMPUTE, x[1:].mean(axis=1)), {"b": x})


def row(ceiling: float = 0.75, middle: float = 40_000, seeds: range = range(3)) -> dict[int, RunCurve]:
    return {seed: run(seed, ceiling, middle) for seed in seeds}


def verdicts(rows: dict[str, dict[int, RunCurve]], rule: CurveRule = RULE) -> dict[str, CurveVerdict]:
    fits = {name: fit_row(runs, rule) for name, runs in rows.items()}
    others = {name: "base" for name in rows if name != "base"}
    return {name: one.verdict for name, one in compare_rows(fits, rows, others, rule).items()}


def test_each_verdict_is_found() -> None:
    rows = {
        "base": row(ceiling=0.7, seeds=EIGHT),
        "low": row(ceiling=0.59, seeds=EIGHT),
        "high": row(ceiling=0.79, seeds=EIGHT),
        "fast": row(ceiling=0.701, middle=15_000, seeds=EIGHT),
        "slow": row(ceiling=0.699, middle=80_000, seeds=EIGHT),
        "same": row(ceiling=0.702, seeds=EIGHT),
    }
    assert verdicts(rows) == {
        "low": CurveVerdict.LOWER,
        "high": CurveVerdict.HIGHER,
        "fast": CurveVerdict.FASTER,
        "slow": CurveVerdict.SLOWER,
        "same": CurveVerdict.SAME,
    }


def test_a_narrow_margin_leaves_equal_rows_undecided() -> None:
    assert verdicts({"base": row(), "same": row(ceiling=0.752)}, CurveRule(0.001, 1.5, 0.5)) == {
        "same": CurveVerdict.UNDECIDED
    }
    assert verdicts({"base": row(), "same": row(ceiling=0.752)}, CurveRule(0.05, 1.001, 0.5)) == {
        "same": CurveVerdict.UNDECIDED
    }


def test_the_interval_is_that_of_seeds_and_problems() -> None:
    """It holds the truth, and is wider for fewer problems and for seeds that differ."""
    plain = fit_row(row(), RULE)
    assert plain.ceiling.low < 0.75 + SKILL.mean() < plain.ceiling.high
    assert plain.log_compute.low < np.log(40_000) < plain.log_compute.high
    assert plain.ceiling.mean == pytest.approx(np.mean([one.ceiling for one in plain.fits.values()]))
    few = {
        seed: RunCurve(Curve(m.problems["b"][0, :200].mean(), COMPUTE, m.problems["b"][1:, :200].mean(axis=1)),
                       {"b": m.problems["b"][:, :200]})
        for seed, m in row().items()
    }  # fmt: skip
    assert fit_row(few, RULE).ceiling.half > 1.5 * plain.ceiling.half
    apart = {seed: run(seed, ceiling, 40_000) for seed, ceiling in enumerate((0.7, 0.75, 0.79))}
    assert fit_row(apart, RULE).ceiling.half > 2 * plain.ceiling.half


def test_a_fit_that_is_not_trusted_decides_nothing() -> None:
    late = 0.1 * (np.arange(36) >= 24)
    turned = {
        seed: RunCurve(Curve(m.curve.start, COMPUTE, m.curve.scores - late), m.problems) for seed, m in row().items()
    }
    ended = {
        seed: RunCurve(m.curve, m.problems, "collapse at step 9" if seed == 1 else "") for seed, m in row().items()
    }
    rising = {seed: RunCurve(Curve(0.3, COMPUTE, 0.3 + COMPUTE / 1e6), m.problems) for seed, m in row().items()}
    rows = {"base": row(), "turned": turned, "ended": ended, "rising": rising}
    narrow = fit_row(row(), CurveRule(0.001, 1.5, 0.5))
    assert narrow.doubt == f"noise alone could miss the last third by {100 * narrow.prediction.noise:.1f} points"
    fits = {name: fit_row(runs, RULE) for name, runs in rows.items()}
    assert {name: one.doubt for name, one in fits.items()} == {
        "base": "",
        "turned": "the last third is missed by more than noise",
        "ended": "seed 1: collapse at step 9",
        "rising": "no ceiling in sight (seed 0, 1, 2)",
    }
    judged = compare_rows(fits, rows, dict.fromkeys(("turned", "ended", "rising"), "base"), RULE)
    assert all(one.ceiling is None and one.verdict is CurveVerdict.UNDECIDED for one in judged.values())
    assert compare_rows(fits, rows, {"base": "turned"}, RULE)["base"].verdict is CurveVerdict.UNDECIDED


def level(seed: int, height: float) -> RunCurve:
    """As high from the first score on."""
    right = np.concatenate([np.full((1, PROBLEMS), 0.3), np.repeat(height + SKILL, len(COMPUTE), axis=0)])
    x = np.random.default_rng([2, seed]).binomial(SAMPLES, right) / SAMPLES
    return RunCurve(Curve(x[0].mean(), COMPUTE, x[1:].mean(axis=1)), {"b": x})


def test_a_compute_at_its_bound_has_no_interval_and_decides_nothing() -> None:
    """It does not move with the scores: the interval would have no width, and every other row would be slower."""
    rows = {"base": row(0.75, seeds=EIGHT), "high": {seed: level(seed, 0.755) for seed in EIGHT}}
    rows |= {"low": {seed: level(seed, 0.6) for seed in EIGHT}}
    fits = {name: fit_row(runs, RULE) for name, runs in rows.items()}
    assert {name: (one.compute_at_bound, one.doubt) for name, one in fits.items()} == {
        "base": (False, ""), "high": (True, ""), "low": (True, ""),
    }  # fmt: skip
    assert np.isnan([fits["high"].log_compute.low, fits["high"].log_compute.high]).all()
    assert fits["high"].ceiling.low < 0.755 + SKILL.mean() < fits["high"].ceiling.high
    judged = compare_rows(fits, rows, {"high": "base", "low": "base"}, RULE)
    assert judged["high"].ceiling is not None
    assert judged["high"].speed is None
    assert {name: one.verdict for name, one in judged.items()} == {
        "high": CurveVerdict.UNDECIDED, "low": CurveVerdict.LOWER,
    }  # fmt: skip
    lines = [CurveRow(name, name, "tepo", None, rows[name], fits[name], judged.get(name)) for name in rows]
    cells = {line.label: dict(zip(["delta", "C", "ratio"], line.cells[1:4], strict=True)) | {"verdict": line.cells[-1]}
             for line in curve_block(lines, RULE, "samples").rows}  # fmt: skip
    assert cells["high"]["C"].text.endswith(" (at its bound)")
    assert "[" not in cells["high"]["C"].text
    assert cells["high"]["ratio"].text == ""
    assert cells["high"]["delta"].mean is not None
    assert cells["high"]["verdict"].text == "undecided: same ceiling, compute at its bound"
    assert "[" in cells["base"]["C"].text


def test_rows_that_are_not_there_count_in_the_family() -> None:
    rows = {"base": row(), "up": row(ceiling=0.64)}
    fits: dict[str, RowFit] = {name: fit_row(runs, RULE) for name, runs in rows.items()}
    alone = compare_rows(fits, rows, {"up": "base"}, RULE)["up"].ceiling
    among = compare_rows(fits, rows, {"up": "base", "a": "base", "b": "base"}, RULE)["up"].ceiling
    assert alone
    assert among
    assert among.p_difference == pytest.approx(3 * alone.p_difference)
    assert alone.difference == among.difference


def test_only_seeds_of_both_are_compared() -> None:
    rows = {"base": row(), "other": row(ceiling=0.64, seeds=range(2, 5)), "none": row(seeds=range(7, 9))}
    fits = {name: fit_row(runs, RULE) for name, runs in rows.items()}
    judged = compare_rows(fits, rows, {"other": "base", "none": "base"}, RULE)
    assert judged["other"].ceiling
    assert judged["other"].ceiling.difference.seeds == 1
    assert judged["none"].ceiling is None
