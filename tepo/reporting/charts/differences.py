"""Differences with their intervals: of rows to their baseline, of the paper's printed ones beside ours, and of
registered claims. The label of a line stands above it, so that none is cut on a phone."""

import math
from typing import Any

import altair as alt
import pandas as pd

from tepo.evaluation.statistics.comparison_verdict import Verdict
from tepo.evaluation.statistics.region import Outcome
from tepo.reporting.charts.style import FAINT, INK, REGION, Looks, colour_of, panels, selected, values, wrapped

_GOOD, _BAD, _SAME, _OPEN = ("#0072B2", "triangle-up"), ("#D55E00", "triangle-down"), ("#009E73", "square"), ("#767676", "circle")  # fmt: skip
_MARKS: dict[str, tuple[str, str]] = {
    Verdict.BETTER: _GOOD,
    Verdict.WORSE: _BAD,
    Verdict.EQUIVALENT: _SAME,
    Outcome.HOLDS: ("#009E73", "circle"),
    Outcome.REFUTED: ("#D55E00", "cross"),
}
_REACH = 8  # the scale ends at this many times the middle of all ends: one collapsed run must not flatten the others
_LETTERS = 46  # of a line of a label
_LINE, _PLOT = 14, 20  # heights of a line of text, and of what is drawn below the text
_WIDTH = 420


def differences(frame: pd.DataFrame, axis: str) -> alt.LayerChart:
    """Forest plot. frame: method, delta, low, high (points; missing where there is no interval), verdict and said (the
    numbers in words), a line a row, the first one on top. axis: its title. A point stands where its number is; what
    lies beyond the scale is an arrow."""
    return _forest(frame, axis)


def claims(frame: pd.DataFrame) -> alt.ConcatChart | alt.LayerChart:
    """Registered claims, a panel a unit: each difference with its interval, its seeds as ticks, and shaded what the
    claim says. frame: as in `differences` with unit, seeds (list) and regions (list of pairs, which may be infinite);
    method is the sentence, and verdict the outcome."""
    units = [_forest(part, f"A above B, {unit}") for unit, part in frame.groupby("unit", sort=False)]
    return panels(units, columns=1).resolve_scale(x="independent", y="independent") if len(units) > 1 else units[0]


def printed_and_measured(frame: pd.DataFrame, looks: Looks, baseline: str) -> alt.ConcatChart:
    """What the paper printed and what was measured here, in panels with axes of their own that are never joined, as
    other models on other problems give them. frame: method, paper, delta, low, high, verdict and said."""
    title = f"points against {baseline}"
    printed = frame[["method"]].assign(
        delta=frame["paper"], low=math.nan, high=math.nan, verdict="", said=frame["paper"].map("{:+.2f}".format)
    )
    printed["said"] = printed["said"].str.replace("-", "−")
    sides = [
        _forest(part, title, looks).properties(title=name, width=_WIDTH - 80)
        for name, part in (("The paper printed", printed), ("Measured here", frame))
    ]
    return panels(sides, columns=2).resolve_scale(x="independent", y="independent")


def _forest(frame: pd.DataFrame, axis: str, looks: Looks | None = None) -> alt.LayerChart:
    """looks: where given, points have the colours of their rows, and else those of their verdicts."""
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
    data = values(rows.drop(columns=[name for name in ("regions", "seeds", "unit", "paper") if name in rows]))
    chosen, opacity = selected(faint=0.25)
    y = alt.Y("method:N", sort=None, axis=None, scale=alt.Scale(padding=0))

    ticks = alt.Axis(tickCount=5, format="+~g", grid=False, labelExpr="datum.value === 0 ? '0' : datum.label")

    def x(field: str, **more: Any) -> alt.X:
        scale = alt.Scale(domain=[low, high], nice=False, zero=False, clamp=True)
        return alt.X(f"{field}:Q", scale=scale, title=axis, axis=ticks, **more)

    tips = [alt.Tooltip("method:N"), alt.Tooltip("said:N", title="difference"), alt.Tooltip("verdict:N")]
    base = alt.Chart(data).encode(y=y, opacity=opacity)
    top = {"align": "left", "baseline": "top", "lineBreak": "\n", "lineHeight": _LINE}
    text = base.mark_text(**top, fontWeight="bold", yOffset=-height / 2 + 2)
    number = base.mark_text(**top, color=FAINT, yOffset=-height / 2 + 2 + lines * _LINE)
    colour, shape = _colour_and_shape(rows, looks)
    layers = [
        *_regions(frame, y, x, low, high),
        base.mark_rule(color=FAINT, strokeWidth=1).encode(x=x("zero"), opacity=alt.value(1)),
        base.mark_rule(strokeWidth=2, yOffset=below, color=INK if looks else alt.Undefined).encode(
            x=x("from"), x2="to:Q", tooltip=tips, **({} if looks else {"color": colour})
        ),
        *(
            base.transform_filter(f"datum.{side}")
            .mark_point(shape=f"triangle-{side}", filled=True, size=60, yOffset=below)
            .encode(x=x(edge), color=colour, tooltip=tips)
            for side, edge in (("left", "start"), ("right", "end"))
            if rows[side].any()
        ),
        *_seeds(frame, y, x, low, high, below),
        base.transform_filter("isValid(datum.at)")
        .mark_point(filled=True, size=85, yOffset=below, opacity=1)
        .encode(x=x("at"), color=colour, shape=shape, tooltip=tips),
        text.encode(x=alt.value(0), text="label:N"),
        number.encode(x=alt.value(0), text="said:N").transform_filter("datum.said != ''"),
    ]
    made = alt.layer(*layers).add_params(chosen)
    return made.properties(width=_WIDTH, height=height * len(rows))


def _colour_and_shape(rows: pd.DataFrame, looks: Looks | None) -> tuple[Any, Any]:
    if looks is not None:
        labels = list(rows["method"])
        colours = [colour_of(label, looks) for label in labels]
        return alt.Color("method:N", scale=alt.Scale(domain=labels, range=colours), legend=None), alt.value("circle")
    words = [word for word in dict.fromkeys(rows["verdict"]) if word]
    marks = [_MARKS.get(word, _OPEN) for word in words]
    legend = alt.Legend(title=None, direction="horizontal") if words else None
    colours, shapes = ([mark[place] for mark in marks] for place in (0, 1))
    return (
        alt.Color("verdict:N", scale=alt.Scale(domain=words, range=colours), legend=legend),
        alt.Shape("verdict:N", scale=alt.Scale(domain=words, range=shapes), legend=legend),
    )


def _regions(frame: pd.DataFrame, y: alt.Y, x: Any, low: float, high: float) -> list[alt.Chart]:
    if "regions" not in frame:
        return []
    ends = [
        {"method": row.method, "from": max(first, low), "to": min(last, high)}
        for row in frame.itertuples()
        for first, last in row.regions
    ]
    return [alt.Chart(values(pd.DataFrame(ends))).mark_rect(color=REGION).encode(y=y, x=x("from"), x2="to:Q")]


def _seeds(frame: pd.DataFrame, y: alt.Y, x: Any, low: float, high: float, below: float) -> list[alt.Chart]:
    if "seeds" not in frame:
        return []
    ticks = [
        {"method": row.method, "seed": seed} for row in frame.itertuples() for seed in row.seeds if low <= seed <= high
    ]
    if not ticks:
        return []
    chart = alt.Chart(values(pd.DataFrame(ticks))).mark_tick(color=FAINT, height=7, thickness=1, yOffset=below)
    return [chart.encode(y=y, x=x("seed"))]


def _scale(frame: pd.DataFrame) -> tuple[float, float]:
    """Ends of the axis, 0 always within."""
    ends = [*frame["low"].dropna(), *frame["delta"].dropna(), *frame["high"].dropna()]
    stated = [end for own in frame.get("regions", ()) for pair in own for end in pair if math.isfinite(end)]
    sizes = sorted(map(abs, [*ends, *stated]))
    reach = _REACH * sizes[len(sizes) // 2] if sizes and sizes[len(sizes) // 2] else math.inf
    known = [min(max(end, -reach), reach) for end in (0.0, *ends, *stated)]
    low, high = min(known), max(known)
    room = 0.06 * (high - low or 1.0)
    return low - room, high + room


