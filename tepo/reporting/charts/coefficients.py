"""The coefficient of grad log pi over the ratio: one panel a method, a line for each sign of the advantage."""

import math
from collections.abc import Mapping, Sequence
from textwrap import wrap

import altair as alt
import pandas as pd

from tepo.objectives.explain import Coefficients
from tepo.reporting.charts.style import FAINT, sizes, values

_WIDTH, _HEIGHT, _COLUMNS = 200, 120, 4
_MOST = 5.0  # of a coefficient that is drawn
_LETTERS = 36  # that fit over a panel
_TICKS = (0.25, 0.5, 1, 2, 4)
_LOOKS = {"advantage 1": ("#0072B2", [1, 0]), "advantage -1": ("#D55E00", [4, 2]), "advantage 0": ("#D55E00", [4, 2])}


def _frame(coefficients: Mapping[str, Coefficients]) -> pd.DataFrame:
    """Rows of method, ratio, value (the coefficient; missing where it is beyond what is drawn) and advantage."""
    rows = [
        {"method": method, "ratio": math.exp(d), "value": value, "advantage": f"advantage {at:g}"}
        for method, curve in coefficients.items()
        for at, line in zip(curve.at, (curve.high, curve.low), strict=True)
        for d, value in zip(curve.log_ratio, line, strict=True)
    ]
    frame = pd.DataFrame(rows, columns=["method", "ratio", "value", "advantage"])
    return frame.assign(value=frame["value"].where(frame["value"].abs() <= _MOST))


def coefficient_panels(
    found: Mapping[str, Coefficients], below: Mapping[str, Sequence[str]] | None = None
) -> alt.ConcatChart:
    """Panels with one scale, by label. The ratio is that of a response of one token. below: lines to stand below the
    title of a panel, by its label."""
    frame = _frame(found)
    low, high = min(-1.0, frame["value"].min()), max(1.0, frame["value"].max())
    signs = list(dict.fromkeys(frame["advantage"]))
    colours, dashes = (list(look) for look in zip(*(_LOOKS[sign] for sign in signs), strict=True))
    x = alt.X(
        "ratio:Q",
        title="π / π_old",
        scale=alt.Scale(type="log", domain=[math.exp(-1.5), math.exp(1.5)], nice=False),
        axis=alt.Axis(values=list(_TICKS), grid=False, format="~g"),
    )
    y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[low, high], nice=False), axis=alt.Axis(tickCount=5))
    legend = alt.Legend(title=None, symbolType="stroke")
    styles = {
        "color": alt.Color("advantage:N", scale=alt.Scale(domain=signs, range=colours), legend=legend),
        "strokeDash": alt.StrokeDash("advantage:N", scale=alt.Scale(domain=signs, range=dashes), legend=legend),
    }
    zero = alt.Chart(values(pd.DataFrame({"value": [0.0]}))).mark_rule(color=FAINT, strokeWidth=0.7).encode(y=y)
    panels = []
    for method, part in frame.groupby("method", sort=False):
        tips = [alt.Tooltip("ratio:Q", format=".3g"), alt.Tooltip("value:Q", format=".3g"), alt.Tooltip("advantage:N")]
        line = alt.Chart(values(part)).mark_line(strokeWidth=2).encode(x=x, y=y, tooltip=tips, **styles)
        lines = [piece for text in (below or {}).get(str(method), ()) for piece in wrap(text, _LETTERS)]
        title = alt.TitleParams(str(method), subtitle=lines) if lines else str(method)
        panels.append(alt.layer(zero, line, title=title, width=_WIDTH, height=_HEIGHT))
    return alt.concat(*panels, columns=_COLUMNS, usermeta=sizes(legend=signs, beside=35))
