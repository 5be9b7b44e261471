"""The map of a sweep: accuracy of rows x settings."""

import math

import altair as alt
import pandas as pd

from tepo.reporting.charts.style import label_lines, selected, sizes, values, wrapped

_LETTERS = 26  # of a line of a row's label
_BLUES = ("#f2f7fb", "#6aaed6")


def sweep_map(frame: pd.DataFrame, axis: str) -> alt.LayerChart:
    """Rows x values, shaded by accuracy, framed where runs ended early. frame: method, value, mean (percent), interval
    (words), ended (runs that did), runs, lost (points; of the row) in the order of the rows. axis: what varies."""
    texts = [
        "–" if math.isnan(mean) else f"{mean:.1f}{'†' if ended else ''}"
        for mean, ended in zip(frame["mean"], frame["ended"], strict=True)
    ]
    rows = frame.assign(said=texts)
    methods, columns = (list(dict.fromkeys(frame[name])) for name in ("method", "value"))
    labels = [wrapped(method, _LETTERS) for method in methods]
    lines = max(label.count("\n") + 1 for label in labels)
    chosen, opacity = selected(faint=0.25)
    top = alt.Axis(orient="top", labelAngle=0, ticks=False, domain=False)
    parted = label_lines(_LETTERS)
    middle = {"condition": {"test": "true", "expr": f"-6.5 * (length({parted}) - 1)"}, "value": 0}  # of the row
    left = alt.Axis(labelExpr=parted, labelOffset=middle, ticks=False, domain=False)
    base = alt.Chart(values(rows)).encode(
        x=alt.X("value:N", sort=columns, title=axis, axis=top),
        y=alt.Y("method:N", sort=methods, title=None, axis=left),
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
    chart = alt.layer(*(layers if frame["ended"].any() else [layers[0], layers[2]])).add_params(chosen)
    size = {"width": max(180, 58 * len(columns)), "height": max(22, 12 * lines + 6) * len(labels)}
    return chart.properties(**size, usermeta=sizes(left=labels))
