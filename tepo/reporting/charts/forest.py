"""Differences with their intervals: of rows to their baseline, and of registered claims. The label of a line stands
above it, so that none is cut on a phone."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from tepo.evaluation.statistics.verdict import DeltaVerdict
from tepo.reporting.charts.style import FAINT, REGION, selected, sizes, values, wrapped

_OPEN = ("#767676", "circle")
_MARKS: dict[str, tuple[str, str]] = {
    DeltaVerdict.BETTER: ("#0072B2", "triangle-up"),
    DeltaVerdict.WORSE: ("#D55E00", "triangle-down"),
    DeltaVerdict.HOLDS: ("#009E73", "circle"),
    DeltaVerdict.REFUTED: ("#D55E00", "cross"),
}
_REACH = 8  # the scale ends at this many times the middle of all ends: one collapsed run must not flatten the others
_LETTERS = 46  # of a line of a label
_LINE, _PLOT = 14, 20  # heights of a line of text, and of what is drawn below the text
_WIDTH, _BESIDE = 420, 40  # and pixels beside it that arrows and ticks need
_SIGNED = "datum.value === 0 ? '0' : replace(format(datum.value, '+~g'), '-', '−')"


def differences(frame: pd.DataFrame, axis: Sequence[str]) -> alt.LayerChart:
    """Forest plot. frame: method, delta, low, high (points; missing where there is no interval), verdict and said (the
    numbers in words), a line a row, the first one on top. axis: lines of its title. A point stands where its number is;
    what lies beyond the scale is an arrow."""
    return _forest(frame, axis).properties(usermeta=sizes(beside=_BESIDE))


def claims(frame: pd.DataFrame) -> alt.ConcatChart | alt.LayerChart:
    """Registered claims, a panel a unit: each difference with its interval, its seeds as ticks, and shaded what the
    claim says. frame: as in `differences` with unit, seeds (list) and regions (list of pairs, which may be infinite);
    method is the sentence, and verdict the outcome."""
    words = list(dict.fromkeys(frame["verdict"]))
    units = [_forest(part, [f"A above B, {unit}"], words) for unit, part in frame.groupby("unit", sort=False)]
    chart = units[0]
    if len(units) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one selection for all panels is meant
            chart = alt.concat(*units, columns=1).resolve_scale(x="independent", y="independent")
    return chart.properties(usermeta=sizes(beside=_BESIDE))


def ranks(frame: pd.DataFrame, axis: str) -> alt.LayerChart:
    """Methods by rank, a line each. frame: method, rank (text), average, low, high (percent), the first one on top."""
    order = alt.Y("method:N", sort=list(frame["method"]), title=None, axis=alt.Axis(labelLimit=0, ticks=False))
    colour = alt.Color("rank:N", sort=list(dict.fromkeys(frame["rank"])), title="rank", scale=alt.Scale(scheme="dark2"))
    x, base = alt.Scale(zero=False, nice=False), alt.Chart(values(frame)).encode(y=order, color=colour)
    tips = [alt.Tooltip("method:N"), alt.Tooltip("rank:N"), alt.Tooltip("average:Q", format=".1f")]
    rule = base.mark_rule().encode(x=alt.X("low:Q", scale=x, title=axis), x2="high:Q", tooltip=tips)
    points = base.mark_point(filled=True, size=45, opacity=1).encode(x=alt.X("average:Q", scale=x), tooltip=tips)
    height = alt.Step(_LINE)
    return alt.layer(rule, points).properties(
        width=_WIDTH, height=height, usermeta=sizes(left=list(frame["method"]), beside=_BESIDE)
    )


def _forest(frame: pd.DataFrame, axis: Sequence[str], words: Sequence[str] = ()) -> alt.LayerChart:
    """words: verdicts of all panels, by default those of the frame."""
    low, high = _scale(frame)
    rows = frame.copy()
    rows["label"] = [wrapped(label, _LETTERS) for label in frame["method"]]
    rows["from"], rows["to"] = rows["low"].clip(low, high), rows["high"].clip(low, high)
    beyond = rows["delta"].lt(low), rows["delta"].gt(high)
    rows["left"] = rows["low"].lt(low) | beyond[0]
    rows["right"] = rows["high"].gt(high) | beyond[1]
    rows["at"] = rows["delta"].where(~(beyond[0] | beyond[1]))
    rows["zero"], rows["start"], rows["end"] = 0.0, low, high
    lines = max((text.count("\n") + 1 for text in rows["label"]), default=1)
    texts = (lines + bool((rows["said"] != "").any())) * _LINE
    height, below = texts + _PLOT, texts / 2  # of a row, and from its middle to what is drawn
    data = values(rows.drop(columns=[name for name in ("regions", "seeds", "unit") if name in rows]))
    shaded = [
        {"method": row.method, "from": max(first, low), "to": min(last, high)}
        for row in frame.itertuples()
        for first, last in getattr(row, "regions", ())
        if first < high and last > low
    ]
    seeds = [
        {"method": row.method, "seed": seed}
        for row in frame.itertuples()
        for seed in getattr(row, "seeds", ())
        if low <= seed <= high
    ]
    chosen, opacity = selected(faint=0.25)
    order = alt.Scale(padding=0, domain=list(frame["method"]))
    y = alt.Y("method:N", axis=None, scale=order)
    ticks = alt.Axis(tickCount=5, grid=False, labelExpr=_SIGNED)

    def x(field: str, **more: Any) -> alt.X:
        scale = alt.Scale(domain=[low, high], nice=False, zero=False, clamp=True)
        return alt.X(f"{field}:Q", scale=scale, title=list(axis), axis=ticks, **more)

    tips = [alt.Tooltip("method:N"), alt.Tooltip("said:N", title="difference"), alt.Tooltip("verdict:N")]
    base = alt.Chart(data).encode(y=y, opacity=opacity)
    top = {"align": "left", "baseline": "top", "lineBreak": "\n", "lineHeight": _LINE}
    text = base.mark_text(**top, fontWeight="bold", yOffset=-height / 2 + 2)
    number = base.mark_text(**top, color=FAINT, yOffset=-height / 2 + 2 + lines * _LINE)
    regions = alt.Chart(values(pd.DataFrame(shaded))).mark_rule(color=REGION, strokeWidth=14, yOffset=below)
    each = alt.Chart(values(pd.DataFrame(seeds))).mark_tick(color=FAINT, height=7, thickness=1, yOffset=below)
    verdicts = [word for word in words or dict.fromkeys(rows["verdict"]) if word]
    colour, shape = _verdict_scales(verdicts, alt.Legend(title=None, direction="horizontal") if verdicts else None)
    layers = [
        *([regions.encode(y=y, x=x("from"), x2="to:Q")] if "regions" in frame else []),
        base.mark_tick(color=FAINT, height=_PLOT, thickness=1, yOffset=below, opacity=1).encode(
            x=x("zero"), opacity=alt.value(1)
        ),
        base.mark_rule(strokeWidth=2, yOffset=below).encode(x=x("from"), x2="to:Q", tooltip=tips, color=colour),
        *(
            base.transform_filter(f"datum.{side}")
            .mark_point(shape=f"triangle-{side}", filled=True, size=60, yOffset=below)
            .encode(x=x(edge), color=colour, tooltip=tips)
            for side, edge in (("left", "start"), ("right", "end"))
            if rows[side].any()
        ),
        *([each.encode(y=y, x=x("seed"))] if seeds else []),
        base.transform_filter("isValid(datum.at)")
        .mark_point(filled=True, size=85, yOffset=below, opacity=1)
        .encode(x=x("at"), color=colour, shape=shape, tooltip=tips),
        text.encode(x=alt.value(0), text="label:N"),
        number.encode(x=alt.value(0), text="said:N").transform_filter("datum.said != ''"),
    ]
    chart = alt.layer(*layers).add_params(chosen)
    return chart.properties(width=_WIDTH, height=height * len(rows))


def _verdict_scales(words: Sequence[str], legend: alt.Legend | None) -> tuple[alt.Color, alt.Shape]:
    """Colour and shape of verdicts, told apart without colour too."""
    colours, shapes = ([_MARKS.get(word, _OPEN)[place] for word in words] for place in (0, 1))
    return (
        alt.Color("verdict:N", scale=alt.Scale(domain=list(words), range=colours), legend=legend),
        alt.Shape("verdict:N", scale=alt.Scale(domain=list(words), range=shapes), legend=legend),
    )


def _scale(frame: pd.DataFrame) -> tuple[float, float]:
    """Ends of the axis, 0 always within."""
    ends = [*frame["low"].dropna(), *frame["delta"].dropna(), *frame["high"].dropna()]
    stated = [end for regions in frame.get("regions", ()) for pair in regions for end in pair if math.isfinite(end)]
    sizes = sorted(map(abs, [*ends, *stated]))
    reach = _REACH * sizes[len(sizes) // 2] if sizes and sizes[len(sizes) // 2] else math.inf
    clipped_ends = [min(max(end, -reach), reach) for end in (0.0, *ends, *stated)]
    low, high = min(clipped_ends), max(clipped_ends)
    room = 0.06 * (high - low or 1.0)
    return low - room, high + room
