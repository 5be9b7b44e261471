"""Charts of what a study varies or tunes: accuracy of rows x settings as a map and as lines, and at settings tried."""

import math

import altair as alt
import pandas as pd

from tepo.reporting.charts.style import (
    INK,
    Looks,
    colour_of,
    line_look,
    panels,
    row_axis,
    selected,
    sizes,
    values,
    wrapped,
)

_LOG_FROM = 8  # values that span this factor or more are shown on a log axis
_LETTERS, _TITLE = 26, 34  # of a line of a row's label, and of a panel's title
_BLUES = ("#f2f7fb", "#6aaed6")


def _scale(log: bool, **more: bool) -> alt.Scale:
    """A scale that does not begin at 0; a logarithmic one cannot, and is not asked to."""
    return alt.Scale(type="log", **more) if log else alt.Scale(zero=False, **more)


def sweep_map(frame: pd.DataFrame, axis: str) -> alt.LayerChart:
    """Rows x values, shaded by accuracy, framed where runs ended early. frame: method, value, mean (percent), interval
    (words), ended (runs that did), runs, lost (points; of the row) in the order of the rows. axis: what varies."""
    said = [
        "–" if math.isnan(mean) else f"{mean:.1f}{'†' if ended else ''}"
        for mean, ended in zip(frame["mean"], frame["ended"], strict=True)
    ]
    rows = frame.assign(said=said)
    methods, columns = (list(dict.fromkeys(frame[name])) for name in ("method", "value"))
    labels = [wrapped(method, _LETTERS) for method in methods]
    lines = max(label.count("\n") + 1 for label in labels)
    chosen, opacity = selected(faint=0.25)
    top = alt.Axis(orient="top", labelAngle=0, ticks=False, domain=False)
    base = alt.Chart(values(rows)).encode(
        x=alt.X("value:N", sort=columns, title=axis, axis=top),
        y=alt.Y("method:N", sort=methods, title=None, axis=row_axis(_LETTERS, domain=False)),
        opacity=opacity,
        tooltip=[
            alt.Tooltip("method:N"),
            alt.Tooltip("value:N", title=axis),
            alt.Tooltip("mean:Q", title="accuracy, %", format=".1f"),
            alt.Tooltip("interval:N", title="95% interval"),
            alt.Tooltip("ended:Q", title="runs that ended early"),
            alt.Tooltip("runs:N", title="seed: run"),
            alt.Tooltip("lost:Q", title="loses over the grid, points", format=".1f"),
        ],
    )  # fmt: skip
    shade = alt.Color("mean:Q", scale=alt.Scale(range=list(_BLUES), domainMin=0), legend=None)
    framed = base.transform_filter("datum.ended > 0").mark_rect(
        filled=False, stroke="#D55E00", strokeWidth=1.5, strokeDash=[3, 2]
    )
    layers = [base.mark_rect().encode(color=shade), framed, base.mark_text(color="#000001").encode(text="said:N")]
    made = alt.layer(*(layers if frame["ended"].any() else [layers[0], layers[2]])).add_params(chosen)
    size = {"width": max(180, 58 * len(columns)), "height": max(22, 12 * lines + 6) * len(labels)}
    return made.properties(**size, usermeta=sizes(left=labels))


def sweep_lines(frame: pd.DataFrame, axis: str, looks: Looks) -> alt.LayerChart:
    """Average accuracy over what varies, a line a row, its band the 95% interval. frame: method, value, mean, low and
    high (percent). The axis is logarithmic where the values are positive numbers that span a factor of 8 or more, and
    has equal distances where they are names."""
    numbers = pd.to_numeric(frame["value"], errors="coerce")
    plain = bool(numbers.notna().all()) and bool(numbers.abs().lt(math.inf).all())
    log = plain and numbers.min() > 0 and numbers.max() >= _LOG_FROM * numbers.min()
    shown = frame.assign(value=numbers if plain else frame["value"])
    x = (
        alt.X(
            "value:Q",
            title=axis,
            scale=_scale(log, nice=False),
            axis=alt.Axis(values=sorted(set(shown["value"])), format="~g", grid=False),
        )
        if plain
        else alt.X("value:N", sort=list(dict.fromkeys(frame["value"])), title=axis, axis=alt.Axis(labelAngle=0))
    )
    chosen, opacity = selected()
    style = line_look({label: looks[label] for label in dict.fromkeys(frame["method"])})
    tips = [alt.Tooltip("method:N"), alt.Tooltip("value:N", title=axis), alt.Tooltip("mean:Q", format=".1f")]
    base = alt.Chart(values(shown)).encode(x=x, color=style["color"])
    y = alt.Y("mean:Q", title="average accuracy, %", scale=alt.Scale(zero=True))
    made = alt.layer(
        base.mark_area(opacity=0.12).encode(y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y=y, strokeDash=style["strokeDash"], opacity=opacity, tooltip=tips),
        base.mark_point(filled=True, size=30).encode(y=y, opacity=opacity, tooltip=tips),
    ).add_params(chosen)
    return made.properties(width=420, height=260, usermeta=sizes(legend=list(looks)))


def tried(frame: pd.DataFrame, axis: str, looks: Looks, *, log: bool) -> alt.ConcatChart:
    """Validation accuracy over what is drawn first, a panel a row on the same axes. frame: row (label and model),
    method, at, score (percent), complete (it has all tuning seeds, so it could be chosen), drawn (False: the default)
    and chosen (True for one of each row)."""
    ticks = alt.Axis(tickCount=3, format="~g", labelOverlap=True)
    x = alt.X("at:Q", title=axis, scale=_scale(log), axis=ticks)
    y = alt.Y("score:Q", title="validation accuracy, %", scale=alt.Scale(zero=False))
    tips = [alt.Tooltip("row:N"), alt.Tooltip("at:Q", title=axis), alt.Tooltip("score:Q", format=".1f")]
    chosen, opacity = selected()
    rows = []
    for row, part in frame.groupby("row", sort=False):
        colour = colour_of(part["method"].iloc[0], looks)
        base = alt.Chart(values(part)).encode(x=x, y=y, opacity=opacity, tooltip=tips)
        points = base.mark_point(size=35, color=colour).encode(
            shape=alt.condition("datum.drawn", alt.value("circle"), alt.value("diamond")),
            fill=alt.condition("datum.complete", alt.value(colour), alt.value("white")),
        )
        ring = base.transform_filter("datum.chosen").mark_point(size=160, color=INK)
        title = wrapped(str(row), _TITLE).split("\n")
        rows.append(alt.layer(points, ring).properties(title=title, width=220, height=130))
    return panels(rows, 3, chosen).resolve_scale(x="shared", y="shared")
