"""The look of all charts, and the files that they are written to.

Colours of ink, lines and shading are few and fixed, so that the page's styles can exchange them in the dark.
"""

import hashlib
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import altair as alt
import pandas as pd

from tepo.common.text import spelt
from tepo.reporting.colours import Look, look

FORMATS = ("svg", "pdf", "png", "html", "json")
_BROAD = 760  # pixels of a page's column
INK, FAINT, GRID, REGION, GREY = "#1b1b1b", "#5c5c5c", "#dddddd", "#e6ebf2", "#b5b5b5"
_DIGITS = 6  # of the numbers of a chart that make it another chart
_CONFIG: dict[str, Any] = {
    "font": "Liberation Sans, Arial, Helvetica, sans-serif",  # of one width: it is measured where it is drawn
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
    "title": {"anchor": "start", "frame": "group", "color": INK, "fontSize": 13},
    "text": {"color": INK, "fontSize": 11},
    "rule": {"color": INK},
}  # fmt: skip

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Chart</title><script>{vega}</script></head>
<body><div id="chart"></div><script>vegaEmbed("#chart", {chart}, {{"renderer": "svg"}})</script></body>
</html>
"""

Chart = Any  # one of Altair's: Chart, LayerChart or ConcatChart


@dataclass(frozen=True)
class NamedChart:
    """A chart. name: of its file, unique in its study. kind: differences, claims, map or curves. ends: of curves, where
    they end, a line a row; of others the study's table has the numbers."""

    name: str
    kind: str
    caption: str
    chart: Chart
    ends: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False)


Looks = Mapping[str, tuple[str, Look | None]]
"""Label of a row -> its method, and its own look where it has one."""


def rows_of(frame: pd.DataFrame, digits: int = _DIGITS) -> list[dict[str, Any]]:
    """The rows for JSON: missing and infinite numbers as null, others with so many digits, texts as `_spelt`."""
    texts = {text: _spelt(text) for name in frame for text in set(frame[name]) if isinstance(text, str)}  # few of many

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.{digits}g}") if math.isfinite(value) else None
        return texts.get(value, value) if isinstance(value, str) else value

    columns = [list(map(plain, frame[name].tolist())) for name in frame]
    return [dict(zip(frame.columns, row, strict=True)) for row in zip(*columns, strict=True)]


def values(frame: pd.DataFrame, digits: int = _DIGITS) -> alt.InlineData:
    """The rows as data of a chart, without Altair's limit of 5,000."""
    return alt.InlineData(values=rows_of(frame, digits))


def selected(faint: float = 0.12, plain: float = 1.0) -> tuple[alt.Parameter, alt.OpacityValue]:
    """A selection of methods, by a click on a mark or in the legend, and the opacity that follows it. faint: of what is
    not selected. plain: of the rest."""
    chosen = alt.selection_point(name="method", fields=["method"], on="click", bind="legend")
    return chosen, alt.OpacityValue(faint, condition={"param": "method", "value": plain, "empty": True})


def line_look(looks: Looks, lifted: Sequence[str] = ()) -> dict[str, Any]:
    """Encodings of lines that are methods: colour and dashes of each row, in one legend. lifted: the rows that keep
    their colours, where the others are grey and not named."""
    labels = list(looks)
    styles = [row_look or look(method) for method, row_look in looks.values()]
    coloured_labels = lifted or labels
    colours = [style.colour if name in coloured_labels else GREY for name, style in zip(labels, styles, strict=True)]
    dashes = [list(style.dash) or [1, 0] for style in styles]
    legend = alt.Legend(title=None, values=list(coloured_labels), symbolType="stroke", labelExpr=LEGEND_LINES)
    return {
        "color": alt.Color("method", type="nominal", scale=alt.Scale(domain=labels, range=colours), legend=legend),
        "strokeDash": alt.StrokeDash(
            "method", type="nominal", scale=alt.Scale(domain=labels, range=dashes), legend=legend
        ),
    }


def wrapped(text: str, letters: int) -> str:
    """The text in lines of at most so many letters, for a text mark with `lineBreak`."""
    return "\n".join(textwrap.wrap(text, letters, break_on_hyphens=False)) or text


def label_lines(letters: int) -> str:
    """The labelExpr of an axis or a legend that parts long labels as `wrapped` does."""
    parts = f"regexp('(.{{1,{letters}}})( +|$)|(.{{{letters}}})', 'g')"
    return f"split(trim(replace(datum.label, {parts}, '$1$3\\n')), '\\n')"


_LEGEND = 42  # letters of a line of a legend
LEGEND_LINES = label_lines(_LEGEND)


def sizes(left: Sequence[str] = (), legend: Sequence[str] = (), beside: int = 55) -> dict[str, int]:
    """Sizes of a chart that `fitted` needs, as its `usermeta`. left: labels on the left of it, `wrapped`. legend: its
    entries. beside: pixels on both sides of each panel where there are no such labels."""
    letters = max((len(line) for label in left for line in label.split("\n")), default=0)
    return {"beside": 45 + 6 * letters if left else beside, "letters": min(_LEGEND, max(map(len, legend), default=0))}


def specification(chart: Chart) -> dict[str, Any]:
    """The chart as Vega-Lite, ready for JSON."""
    plain = chart.copy(deep=False)
    named = {} if chart.datasets is alt.Undefined else chart.datasets
    plain.datasets = alt.Undefined  # ready as it is, where Altair would look at every number
    spec: dict[str, Any] = plain.to_dict(validate=False)
    sets = {**spec.pop("datasets", {}), **named}  # of `rows_of`
    return fitted({**_spelt(spec), "config": _CONFIG, **({"datasets": sets} if sets else {})}, None)


def _spelt(node: Any) -> Any:
    """The specification without characters that XML has not; vl-convert would end the process at one. Titles of fields
    are on one line and have no backslashes, as Vega-Lite puts them into expressions as they are."""
    match node:
        case str():
            return spelt(node).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
        case {"field": _, "title": str(title)}:
            rest = {key: _spelt(part) for key, part in node.items() if key != "title"}
            return rest | {"title": " ".join(_spelt(title).replace("\\", "∖").split())}
        case dict():
            return {key: _spelt(part) for key, part in node.items()}
        case list():
            return [_spelt(part) for part in node]
    return node


def styled(chart: Chart) -> Chart:
    """The chart with its look, as a notebook shows it."""
    chart.config = alt.Config(**_CONFIG)
    return chart


def fitted(made: dict[str, Any], width: int | None) -> dict[str, Any]:
    """A specification for so many pixels, by its `sizes`: fewer panels side by side, each as wide as there is room for,
    and fewer columns in the legend. None: panels as they are. The page's script does the same."""
    chart_sizes = made.get("usermeta", {})
    columns = max(1, (width or _BROAD) // (50 + 7 * chart_sizes.get("letters", 0)))
    legend = {**made["config"]["legend"], "columns": columns}
    made = {**made, "config": {**made["config"], "legend": legend}}
    if width is None:
        return made
    across = max(1, min(made.get("columns", 1), width // 330))
    fit = {"width": width // across - chart_sizes.get("beside", 55)}
    if "concat" in made:
        return {**made, "columns": across, "concat": [{**part, **fit} for part in made["concat"]]}
    return {**made, **fit}


def digest(chart: Chart) -> str:
    """A hash of what the chart shows: its specification with numbers to six digits. Other versions of Altair write
    other names and versions; these are left out."""
    automatic = ("$schema", "name", "views", "config")

    def plain(value: Any) -> Any:
        match value:
            case dict():
                return {key: plain(part) for key, part in value.items() if key not in automatic}
            case list():
                return [plain(part) for part in value]
            case float():
                return float(f"{value:.{_DIGITS}g}")
        return value

    spec = specification(chart)
    spec["rows"] = list(spec.pop("datasets", {}).values())
    return hashlib.blake2b(json.dumps(plain(spec), sort_keys=True).encode(), digest_size=8).hexdigest()


def svg(chart: Chart, width: int | None = None) -> str:
    """The chart as SVG text, with the hash of what it shows. width: see `fitted`; without one it is a file's, white
    behind it, as whoever shows it may have a dark page."""
    import vl_convert

    spec = specification(chart)
    # and room for a wider font
    spec = spec | {"background": "white", "padding": {"left": 24}} if width is None else fitted(spec, width)
    text: str = vl_convert.vegalite_to_svg(spec)
    return text.replace("</svg>", f"<!-- chart {digest(chart)} --></svg>")


def drawn(chart: Chart, format: str) -> bytes | str:
    """The chart as the content of a file of one of FORMATS. HTML holds Vega and needs no network; JSON is the
    specification with its data."""
    import vl_convert

    match format:
        case "svg":
            return svg(chart)
        case "png":
            image: bytes = vl_convert.vegalite_to_png({**specification(chart), "background": "white"}, scale=2.0)
            return image
        case "pdf":
            document: bytes = vl_convert.vegalite_to_pdf(specification(chart))
            return document
        case "html":
            chart_json = json.dumps({**specification(chart), "background": "white"}).replace("<", "\\u003c")
            return _PAGE.format(vega=vega(), chart=chart_json)
    return json.dumps(specification(chart), indent=1, ensure_ascii=False) + "\n"


@cache
def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, which sets `vegaEmbed`."""
    import vl_convert

    script: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # the stub knows no default
    return script
