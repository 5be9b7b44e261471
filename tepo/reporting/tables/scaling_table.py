"""The fits of a study's curves as a block of its table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tepo.evaluation.statistics.comparison_verdict import Verdict
from tepo.evaluation.statistics.scaling_comparison import CurveRule, CurveVerdict, RowFit, RowVerdict, RunCurve
from tepo.reporting.colours import Look
from tepo.reporting.tables.cells import number_text
from tepo.reporting.tables.table import MISSING, Block, Cell, Column, Kind, TableRow, percent_cell

COMPUTE = {"samples": "responses drawn", "steps": "training steps", "cpu": "CPU seconds of sampling and updates"}


@dataclass(frozen=True)
class CurveRow:
    """A row of one model and setting: its runs by seed and their fit, None where nothing was trained. judged: None for
    the baseline."""

    key: str
    label: str
    method: str
    look: Look | None
    runs: Mapping[int, RunCurve]
    fit: RowFit | None
    judged: RowVerdict | None


def curve_block(rows: Sequence[CurveRow], rule: CurveRule, over: str) -> Block:
    """over: a key of COMPUTE."""
    columns = (
        Column("ceiling", "Ceiling A"),
        Column("ceiling_delta", "Δ A", Kind.DELTA),
        Column("compute", f"C at {_percent(rule.share)}", Kind.TEXT),
        Column("compute_ratio", "C × baseline", Kind.TEXT),
        Column("steepness", "B", Kind.TEXT),
        Column("last_third", "Last third missed by", Kind.TEXT),
        Column("curve", "Curve", Kind.TEXT),
    )
    doubted = any(row.judged is None and row.fit and row.fit.doubt for row in rows)
    lines = [TableRow(row.key, row.label, _cells(row, doubted), row.method, look=row.look) for row in rows]
    title = f"Fitted to validation accuracy over {COMPUTE[over]}, ± over seeds and validation problems"
    return Block(title, columns, tuple(lines))


def curve_notes(
    rows: Sequence[CurveRow], rule: CurveRule, over: str, start: Literal["measured", "fitted"]
) -> list[str]:
    """start: where R0 is from."""
    origin = "that of the untrained policy" if start == "measured" else "fitted too"
    family = 2 * sum(row.judged is not None for row in rows)
    return [
        "Ceiling A, C and B: R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B) fitted to each seed's accuracy on validation "
        f"problems, C being {COMPUTE[over]} and R0 {origin}; C at {_percent(rule.share)} of the way "
        "from R0 to A. Intervals at 95% over seeds and validation problems; none where a fit is at its bound.",
        "Last third missed by: points of score above what the fit to the first two thirds of compute predicts, and in "
        "brackets what noise alone gives in 95% of cases. A fit that misses by more is not trusted, nor where noise "
        f"alone could give more than {100 * rule.margin:g}.",
        f"Curve: ceilings within {100 * rule.margin:g} points are equivalent, and so are computes within a factor of "
        f"{rule.factor:g}, which are compared between equivalent ceilings alone; at 5%, Holm-corrected over the "
        f"{family} comparisons of this block (docs/evaluation.md).",
    ]


def _cells(row: CurveRow, doubted: bool) -> tuple[Cell, ...]:
    """doubted: whether the baseline's fit is not trusted."""
    if row.fit is None:
        return (MISSING, MISSING, *[Cell()] * 5)
    ceiling, compute, prediction = row.fit.ceiling, row.fit.log_compute, row.fit.prediction
    steepness = [one.steepness for one in row.fit.fits.values()]
    delta, ratio = MISSING, ""
    if row.judged and row.judged.ceiling:
        one = row.judged.ceiling.difference
        delta = percent_cell(one.delta, one.low, one.high)
    if row.judged and row.judged.speed:
        speed = row.judged.speed.difference
        ratio = _scaled(speed.delta, speed.low, speed.high)
    words = (
        _scaled(compute.mean, compute.low, compute.high) + (" (at its bound)" if row.fit.compute_at_bound else ""),
        ratio,
        f"{math.exp(sum(map(math.log, steepness)) / len(steepness)):.2f}",
        f"{number_text(100 * prediction.miss, 1, '+')} (±{100 * prediction.noise:.1f})",
        _verdict(row, doubted),
    )
    return (percent_cell(ceiling.mean, ceiling.low, ceiling.high), delta, *(Cell(text=text) for text in words))


def _verdict(row: CurveRow, doubted: bool) -> str:
    assert row.fit
    untrusted = f"fit not trusted: {row.fit.doubt}" if row.fit.doubt else ""
    if row.judged is None:
        return ", ".join(filter(None, ("baseline", untrusted)))
    verdict = row.judged.verdict
    if verdict is not CurveVerdict.UNDECIDED:
        return str(verdict)
    if untrusted or doubted:
        return f"{verdict}: {untrusted or 'the fit of the baseline is not trusted'}"
    if row.judged.ceiling is None:
        return f"{verdict}: no seed beside the baseline"
    if row.judged.ceiling.verdict is Verdict.EQUIVALENT:
        if row.judged.speed is None:
            return f"{verdict}: same ceiling, compute at its bound"
        return f"{verdict}: same ceiling, compute known to a factor of {math.exp(row.judged.speed.difference.half):.2f}"
    return f"{verdict}: ceilings ±{100 * row.judged.ceiling.difference.half:.1f}"


def _scaled(log: float, low: float, high: float) -> str:
    """A factor or a number from its logarithm, with its interval."""
    interval = "" if math.isnan(low) else f" [{_short(math.exp(low))}, {_short(math.exp(high))}]"
    return _short(math.exp(log)) + interval


def _short(value: float) -> str:
    """Three digits; thousands as k."""
    if value >= 1e6:
        return f"{value / 1e6:.3g}M" if value < 1e9 else f"{value:.1e}"
    return f"{value / 1000:.3g}k" if value >= 1000 else f"{value:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:g}%"
