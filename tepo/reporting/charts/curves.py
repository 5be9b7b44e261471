"""Training curves: a panel a metric, a line a row in the mean over its seeds, and a faint line each seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from altair.utils.schemapi import debug_mode

from tepo.reporting.charts.style import Looks, line_look, rows_of, selected, sizes

AXES = {
    "steps": "training step",
    "samples": "responses drawn",
    "tokens": "tokens sampled",
    "time": "wall time of the steps (seconds)",
    "kl": "realised KL of the rollouts, summed (nats per token)",
}
_SUMMED = {"tokens": "perf/sampled_tokens", "time": "timing_s/step", "kl": "actor/realised_kl_k3"}
STEP, _SAMPLES = "training/global_step", "training/responses"  # from the start of the run
_FEW = 6  # rows that can be told apart: of more, the baseline and two extremes have their colours and the rest is grey
_FLAT = 8.0  # a row this many times the middle one's peak flattens the others on a linear axis
_WIDTH, _HEIGHT = 250, 160
_TIGHT = alt.Scale(nice=False, zero=False)
_DATA, _DIGITS = "runs", 4  # of the values; more are not seen
_TIPS = 1500  # points that have a tooltip each


@dataclass(frozen=True)
class Panel:
    """One pair of axes. name: of the values in the chart's data. scale: factor for display (100 for percent)."""

    metric: str
    name: str
    title: str
    unit: str = ""
    scale: float = 1.0


TRAINING_PANELS = (
    Panel("critic/score/mean", "reward", "Reward", "% right", 100),
    Panel("actor/entropy", "entropy", "Entropy", "nats per token"),
    Panel("actor/pg_clipfrac", "clip_fraction", "Clip fraction", "% of tokens", 100),
    Panel("actor/grad_norm", "gradient_norm", "Gradient norm"),
    Panel("response_length/mean", "response_length", "Response length", "tokens"),
)


def curve_frame(
    steps: pd.DataFrame, panels: Sequence[Panel] = TRAINING_PANELS, against: str = "steps", points: int | None = None
) -> pd.DataFrame:
    """A line a run and step: method, seed, run, step, at (where the step lies on the axis: the mean of the positions
    of its row's seeds), last (of a run that ended early) and the panels' values.

    steps: method, seed, run, ended (early) and the metrics with their step, `training/global_step`, in order. against:
    one of AXES; a run that lacks what the axis needs is left out. points: of a run at most; of neighbouring steps the
    mean."""
    frame = steps[["method", "seed", "run"]].assign(step=steps[STEP], at=_positions(steps, against))
    frame["last"] = steps["ended"].astype(bool) & (frame["step"] == frame.groupby("run")["step"].transform("max"))
    for panel in panels:
        metric_values = steps[panel.metric].astype(float) if panel.metric in steps else np.nan
        frame[panel.name] = panel.scale * pd.Series(metric_values, steps.index).replace([np.inf, -np.inf], np.nan)
    frame = frame[frame["at"].notna()].reset_index(drop=True)
    frame["at"] = frame.groupby(["method", "step"])["at"].transform("mean")
    longest = frame.groupby("run").size().max() if len(frame) else 0
    width = -(-longest // points) if points else 1
    return _thinned(frame, width) if width > 1 else frame


def _positions(steps: pd.DataFrame, against: str) -> "pd.Series[float]":
    """The axis's value at each step; missing in all of a run that lacks some."""
    if against == "steps":
        return steps[STEP].astype(float)
    metric = _SUMMED.get(against, _SAMPLES)
    amounts = steps[metric].astype(float) if metric in steps else pd.Series(np.nan, steps.index)
    values = amounts.groupby(steps["run"]).cumsum() if against in _SUMMED else amounts
    return values.where(amounts.notna().groupby(steps["run"]).transform("all"))


def _thinned(frame: pd.DataFrame, width: int) -> pd.DataFrame:
    """Neighbouring steps, the same ones in every run, as one at the last of them."""
    rank = (frame["step"].rank(method="dense").astype(int) - 1) // width
    how = dict.fromkeys(("step", "at"), "last") | {"last": "max"}
    columns = {name: how.get(name, "mean") for name in frame.columns if name not in ("method", "seed", "run")}
    rows = frame.groupby(["method", "seed", "run", rank.rename("rank")], sort=False).agg(columns)
    return rows.reset_index().drop(columns="rank")


def training_curves(
    frame: pd.DataFrame,
    looks: Looks,
    shown: Sequence[Panel] = TRAINING_PANELS,
    against: str = "steps",
    lifted: Sequence[str] = (),
    columns: int = 3,
) -> alt.ConcatChart:
    """Panels that any run has data for. frame: of `curve_frame`. A cross marks where a run ended early. The axis of a
    panel is logarithmic where one row would flatten the others. Of many rows those to be lifted and those that end
    highest and lowest in the first panel have their colours."""
    shown = [panel for panel in shown if frame[panel.name].notna().any()]
    rows = {label: looks[label] for label in dict.fromkeys(frame["method"])}
    coloured = _lifted(frame, shown[0], lifted) if shown and len(rows) > _FEW else ()
    several = bool((frame.groupby("method")["run"].nunique() > 1).any())
    with debug_mode(False):  # thousands of parts, each checked again wherever it is copied
        chosen, opacity = selected()
        charts = [_panel(frame, panel, opacity, against, several) for panel in shown]
        chart = alt.concat(*charts, columns=columns).resolve_scale(color="shared", strokeDash="shared")
    # what is long comes last, as every call of Altair copies all that a chart has; one panel has the colours of all
    if charts:
        chart.concat[0].encoding |= line_look(rows, coloured)
        selection, views = chosen.param.to_dict(), [panel.layer[0].name for panel in chart.concat]
        chart.params = [
            alt.TopLevelSelectionParameter(
                name=selection["name"], select=selection["select"], bind=selection["bind"], views=views
            )
        ]
    points = frame[["method", "seed", "run", "at", "last", *(panel.name for panel in shown)]]
    chart.usermeta = sizes(legend=list(coloured or rows))
    short = {panel.name: points[panel.name].map(lambda value: float(f"{value:.{_DIGITS}g}")) for panel in shown}
    chart.datasets = {_DATA: rows_of(points.assign(**short))}
    return chart


def run_curves(
    metrics: Sequence[Mapping[str, Any]], method: str, seed: int, run: str, *, ended: bool
) -> alt.ConcatChart:
    """The curves of a single run, from its metrics.jsonl. run: its id. ended: early."""
    steps = pd.DataFrame(metrics).assign(method=method, seed=seed, run=run, ended=ended)
    return training_curves(curve_frame(steps), {method: (method, None)})


def ends(frame: pd.DataFrame, panels: Sequence[Panel] = TRAINING_PANELS) -> pd.DataFrame:
    """The mean over seeds of each row at its last step, a column a panel: what the curves come to, as a table."""
    measured_panels = [panel for panel in panels if frame[panel.name].notna().any()]
    titles = [", ".join(filter(None, (panel.title, panel.unit))) for panel in measured_panels]
    last = [_means(frame, panel).groupby("method").last() for panel in measured_panels]
    order = list(dict.fromkeys(frame["method"]))
    means = pd.DataFrame(dict(zip(titles, last, strict=True))).reindex(order)
    texts = means.map(lambda mean: f"{float(f'{mean:.3g}'):g}").replace("nan", "–")
    return texts.rename_axis("Method").reset_index()


def _panel(frame: pd.DataFrame, panel: Panel, opacity: Any, against: str, several: bool) -> alt.LayerChart:
    x = alt.X("at", type="quantitative", title=AXES[against], axis=alt.Axis(grid=False), scale=_TIGHT)
    scale = alt.Scale(type="log") if _one_flattens(frame, panel) else alt.Scale(zero=False)
    y = alt.Y(panel.name, type="quantitative", title=panel.unit or None, scale=scale)
    tips = [alt.Tooltip(name, type="nominal") for name in ("method", "seed", "run")]
    base = alt.Chart(alt.NamedData(_DATA)).transform_filter(f"isValid(datum.{panel.name})")
    # the mean at the steps that every seed of the row has: it must not jump where one ends
    mean = (
        base.transform_joinaggregate(seeds="distinct(run)", groupby=["method"])
        .transform_aggregate(
            **{panel.name: f"mean({panel.name})"}, known="count()", seeds="max(seeds)", groupby=["method", "at"]
        )
        .transform_filter("datum.known == datum.seeds")
    )
    line = (mean if several else base).mark_line(strokeWidth=2)
    parts = [line.encode(tooltip=tips[:1] if several else tips)]
    if several:
        run, faint = alt.Detail("run", type="nominal"), selected(faint=0.04, plain=0.3)[1]
        parts.insert(0, base.mark_line(strokeWidth=0.8).encode(detail=run, opacity=faint, tooltip=tips))
    if len(frame) <= _TIPS:
        at = alt.Tooltip("at", type="quantitative", title=AXES[against])
        value = alt.Tooltip(panel.name, type="quantitative", title=panel.title, format=".4~g")
        points = base.mark_point(size=40, filled=True)
        parts.append(points.encode(opacity=alt.OpacityValue(0), tooltip=[*tips, at, value]))
    if frame.loc[frame["last"], panel.name].notna().any():
        ended = base.transform_filter("datum.last").mark_point(shape="cross", angle=45, filled=True, size=90)
        parts.append(ended.encode(tooltip=tips))
    parts[0].name = panel.name  # the view whose marks are clicked
    shared = {"x": x, "y": y, "opacity": opacity, "color": alt.Color("method", type="nominal")}
    shared["strokeDash"] = alt.StrokeDash("method", type="nominal")
    return alt.layer(*parts, encoding=shared, title=panel.title, width=_WIDTH, height=_HEIGHT)


def _means(frame: pd.DataFrame, panel: Panel) -> "pd.Series[float]":
    """Mean over seeds at each step of a row, by method and position."""
    return frame.dropna(subset=[panel.name]).groupby(["method", "at"])[panel.name].mean()


def _one_flattens(frame: pd.DataFrame, panel: Panel) -> bool:
    means = _means(frame, panel)
    peaks = means.groupby("method").max().sort_values().to_numpy()
    return len(peaks) > 2 and frame[panel.name].min() > 0 and peaks[-1] > _FLAT * peaks[(len(peaks) - 1) // 2]


def _lifted(frame: pd.DataFrame, panel: Panel, rows: Sequence[str]) -> list[str]:
    last = _means(frame, panel).groupby("method").last()
    named = {*rows, str(last.idxmax()), str(last.idxmin())}
    return [label for label in dict.fromkeys(frame["method"]) if label in named]
