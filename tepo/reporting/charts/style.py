"""The look of all charts, and the files that they are written to.

Colours of ink, lines and shading are few and fixed, so that the page's styles can exchange them in the dark.
"""

import hashlib
import json
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import altair as alt
import pandas as pd

from tepo.common.text import spelt
from tepo.reporting.colours import Look, look

FORMATS = ("svg", "pdf", "png", "html", "json")
INK, FAINT, GRID, REGION, GREY = "#1b1b1b", "#5c5c5c", "#dddddd", "#e6ebf2", "#b5b5b5"
_DIGITS = 6  # of the numbers of a chart that make it another chart
_CONFIG: dict[str, Any] = {
    "font": "sans-serif",
    "background": "transparent",
    "view": {"stroke": None},
    "axis": {
        "domainColor": INK, "tickColor": INK, "gridColor": GRID, "labelColor": INK, "titleColor": INK,
        "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 11, "labelLimit": 0,
    },
    "legend": {
        "labelColor": INK, "titleColor": INK, "labelLimit": 0, "labelFontSize": 11, "symbolStrokeWidth": 2.5,
        "symbolSize": 90, "symbolOpacity": 1, "orient": "bottom", "direction": "vertical", "columnPadding": 18,
    },
    "title": {"anchor": "start", "frame": "group", "color": INK, "fontSize": 13, "subtitleColor": FAINT, "subtitleFontSize": 11},
    "text": {"color": INK, "fontSize": 11},
    "rule": {"color": INK},
}  # fmt: skip

Chart = alt.Chart | alt.LayerChart | alt.ConcatChart


@dataclass(frozen=True)
class NamedChart:
    """A chart. name: of its file, unique in its study. kind: differences, claims, printed, map, lines, settings, curves
    or times. ends: of curves, where they end, a line a row; of others the study's table has the numbers. instead: name
    of a chart that says no more than this one."""

    name: str
    kind: str
    caption: str
    chart: Chart
    ends: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False)
    instead: str = ""


Looks = Mapping[str, tuple[str, Look | None]]
"""Label of a row -> its method, and its own look where it has one."""


def rows_of(frame: pd.DataFrame, digits: int = _DIGITS) -> list[dict[str, Any]]:
    """The rows for JSON: missing numbers as null, others with few digits."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return None if value != value else float(f"{value:.{digits}g}")
        return value

    columns = [[plain(value) for value in frame[name].tolist()] for name in frame]
    return [dict(zip(frame.columns, row, strict=True)) for row in zip(*columns, strict=True)]


def values(frame: pd.DataFrame, digits: int = _DIGITS) -> alt.InlineData:
    """The rows as data of a chart, without Altair's limit of 5,000."""
    return alt.InlineData(values=rows_of(frame, digits))


def selected(faint: float = 0.12) -> tuple[alt.Parameter, alt.OpacityValue]:
    """A selection of methods, by a click on a mark or in the legend, and the opacity that follows it."""
    chosen = alt.selection_point(name="method", fields=["method"], on="click", bind="legend")
    return chosen, alt.OpacityValue(faint, condition={"param": "method", "value": 1, "empty": True})


def panels(charts: Sequence[Any], columns: int, chosen: alt.Parameter | None = None) -> alt.ConcatChart:
    """Charts as the panels of one, which share their selection. chosen: where they have none yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one selection for all is meant
        made: alt.ConcatChart = alt.concat(*charts, columns=columns)
        return made.add_params(chosen) if chosen is not None else made


def colour_of(label: str, looks: Looks) -> str:
    """The colour of a row."""
    method, own = looks[label]
    return (own or look(method)).colour


def line_look(looks: Looks, lifted: Sequence[str] = ()) -> dict[str, Any]:
    """Encodings of lines that are methods: colour and dashes of each row, in one legend. lifted: the rows that keep
    their colours, where the others are grey and not named."""
    labels = list(looks)
    styles = [own or look(method) for method, own in looks.values()]
    shown = lifted or labels
    colours = [style.colour if name in shown else GREY for name, style in zip(labels, styles, strict=True)]
    dashes = [list(style.dash) or [1, 0] for style in styles]
    legend = alt.Legend(title=None, columns=legend_columns(shown), values=list(shown), symbolType="stroke")
    return {
        "color": alt.Color("method", type="nominal", scale=alt.Scale(domain=labels, range=colours), legend=legend),
        "strokeDash": alt.StrokeDash("method", type="nominal", scale=alt.Scale(domain=labels, range=dashes), legend=legend),
    }


def legend_columns(labels: Sequence[str]) -> int:
    """Columns of a legend below a chart as wide as a page's column; a phone has room for one with long labels."""
    return max(1, min(len(labels), 90 // (6 + max(map(len, labels), default=1))))


def wrapped(text: str, letters: int) -> str:
    """The text in lines of at most so many letters; `lineBreak` of a text mark or `label_lines` of an axis parts them."""
    return "\n".join(textwrap.wrap(text, letters, break_long_words=True)) or text


LABEL_LINES = "split(datum.label, '\\n')"
"""labelExpr of an axis whose labels are `wrapped`."""


def specification(chart: Chart) -> dict[str, Any]:
    """The chart as Vega-Lite, ready for JSON."""
    plain = chart.copy(deep=False)
    named = {} if chart.datasets is alt.Undefined else chart.datasets
    plain.datasets = alt.Undefined  # ready as it is, where Altair would look at every number
    made: dict[str, Any] = plain.to_dict(validate=False)
    if named:
        made["datasets"] = {**made.get("datasets", {}), **named}
    return {**made, "config": _CONFIG}


def styled(chart: Chart) -> Chart:
    """The chart with its look, as a notebook shows it."""
    chart.config = alt.Config(**_CONFIG)
    return chart


def fitted(made: dict[str, Any], width: int) -> dict[str, Any]:
    """A specification for so many pixels: fewer panels side by side, each as wide as there is room for. The page's
    script does the same."""
    parts = made.get("concat", [made])
    across = max(1, min(made.get("columns", 1), width // 330))
    shown = [{**part, "width": width // across - 55} for part in parts]
    return {**made, "columns": across, "concat": shown} if "concat" in made else shown[0]


def digest(chart: Chart) -> str:
    """What the chart shows, as a hash: its specification with numbers to six digits. Other versions of Altair write
    other names and versions; these are left out."""

    def plain(value: Any) -> Any:
        match value:
            case dict():
                return {key: plain(part) for key, part in value.items() if key not in ("$schema", "name", "config")}
            case list():
                return [plain(part) for part in value]
            case float():
                return float(f"{value:.{_DIGITS}g}")
        return value

    made = specification(chart)
    named = {name: f"data-{number}" for number, name in enumerate(made.pop("datasets", {}))}
    made["rows"] = list(chart_data(chart).values())
    text = json.dumps(plain(made), sort_keys=True)
    for name, plain_name in named.items():
        text = text.replace(name, plain_name)
    return hashlib.blake2b(re.sub(r'"view_\d+"', '"view"', text).encode(), digest_size=8).hexdigest()


def chart_data(chart: Chart) -> dict[str, Any]:
    """Data sets of the chart by their names."""
    sets: dict[str, Any] = specification(chart).get("datasets", {})
    return sets


def svg(chart: Chart, width: int | None = None) -> str:
    """The chart as SVG text, with the hash of what it shows. width: see `fitted`."""
    import vl_convert

    made = specification(chart) if width is None else fitted(specification(chart), width)
    text = spelt(vl_convert.vegalite_to_svg(made))  # XML has no control characters
    return text.replace("</svg>", f"<!-- chart {digest(chart)} --></svg>")


def png(chart: Chart, scale: float = 2.0, width: int | None = None) -> bytes:
    """The chart as a PNG image, white behind it; scale: pixels for each of its units. width: see `fitted`."""
    import vl_convert

    made = specification(chart) if width is None else fitted(specification(chart), width)
    drawn: bytes = vl_convert.vegalite_to_png({**made, "background": "white"}, scale=scale)
    return drawn


def drawn(chart: Chart, format: str) -> bytes | str:
    """The chart as the content of a file of one of FORMATS. HTML holds Vega and needs no network; JSON is the
    specification with its data."""
    import vl_convert

    match format:
        case "svg":
            return svg(chart)
        case "png":
            return png(chart)
        case "pdf":
            made: bytes = vl_convert.vegalite_to_pdf(specification(chart))
            return made
        case "html":
            page: str = vl_convert.vegalite_to_html({**specification(chart), "background": "white"}, bundle=True)
            return page
    return json.dumps(specification(chart), indent=1, ensure_ascii=False) + "\n"


@cache
def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, which sets `vegaEmbed`."""
    import vl_convert

    script: str = vl_convert.javascript_bundle()
    return script
