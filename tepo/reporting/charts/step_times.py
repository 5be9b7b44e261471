"""Time of a training step by section: a stacked bar for each row, from the sections that `metrics.jsonl` times."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from tepo.reporting.charts.style import row_axis, selected, sizes, values, wrapped
from tepo.reporting.colours import PALETTE

_STEP, _SECTION, _BUBBLE = "timing_s/step", "timing_s/", "perf/bubble/"
PARTS = {
    "gen": ("sampling", "blue"),
    "reward": ("waiting for the grader", "sky"),
    "old_log_prob": ("old log-probs", "teal"),
    "adv": ("advantages", "sand"),
    "update_actor": ("updates", "vermillion"),
    "sync": ("weights to the sampler", "purple"),
    "testing": ("validation", "olive"),
    "save_checkpoint": ("checkpoint", "wine"),
    "waiting": ("waiting for other ranks", "black"),
    "rest": ("other", "grey"),
}
"""Section -> its name and colour, in the order of a step. A checkpoint is begun after its step and comes on top of the
step's own seconds."""
_LEAST = 0.002  # of a step, to be drawn
_LETTERS = 26  # of a line of a row's label


def step_parts(row: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of a step by part; empty for a row whose parts were not timed (a record keeps the whole alone). On
    several ranks the share of each phase in which ranks wait on average is taken from it."""
    if _STEP not in row or not any(_SECTION + name in row for name in PARTS):
        return {}
    spent = {name: float(row.get(_SECTION + name, 0.0)) for name in (*PARTS, "gather")}
    busy = {name: 1 - min(1.0, float(row.get(_BUBBLE + name, 0.0))) for name in PARTS}
    drawn = spent["gen"] + spent["reward"]  # the rollout is one phase: these two, and ranks that meet
    busy["gen"] = busy["reward"] = busy["gen"] * (drawn + spent["gather"]) / drawn if drawn else 0.0
    parts = {name: spent[name] * busy[name] for name in PARTS}
    waiting = sum(spent.values()) - sum(parts.values())
    rest = float(row[_STEP]) - sum(spent.values()) + spent["save_checkpoint"]
    return parts | {"waiting": max(0.0, waiting), "rest": max(0.0, rest)}


def step_time_frame(steps: pd.DataFrame) -> pd.DataFrame:
    """Means over steps and seeds: method, part, seconds; empty where no run was timed. steps: as in
    `curves.curve_frame`."""
    sections = [name for name in steps if str(name).startswith((_SECTION, _BUBBLE))]
    rows = steps[sections].to_dict("records") if any(_SECTION + name in sections for name in PARTS) else []
    timed = [
        {"method": method, **parts}
        for method, row in zip(steps["method"], rows, strict=False)
        if (parts := step_parts({name: value for name, value in row.items() if value == value}))
    ]
    if not timed:
        return pd.DataFrame(columns=["method", "part", "seconds"])
    means = pd.DataFrame(timed).groupby("method", sort=False)[list(PARTS)].mean()
    shown = [name for name in PARTS if (means[name] > _LEAST * means.sum(axis=1)).any()]
    long = means[shown].reset_index().melt("method", var_name="part", value_name="seconds")
    return long.assign(part=[PARTS[name][0] for name in long["part"]])


def step_times(frame: pd.DataFrame) -> alt.LayerChart:
    """Stacked bars. frame: of `step_time_frame`."""
    colours = {title: PALETTE[colour] for title, colour in PARTS.values()}
    shown = [title for title in colours if title in set(frame["part"])]
    order = [shown.index(part) for part in frame["part"]]
    rows = frame.assign(order=order)
    methods = list(dict.fromkeys(frame["method"]))
    labels = [wrapped(method, _LETTERS) for method in methods]
    lines = max(label.count("\n") + 1 for label in labels)
    chosen, opacity = selected(faint=0.3)
    base = alt.Chart(values(rows, digits=4)).encode(
        y=alt.Y("method:N", sort=methods, title=None, axis=row_axis(_LETTERS)), opacity=opacity
    )
    bars = base.mark_bar().encode(
        x=alt.X("seconds:Q", title="seconds of a step, mean over steps and seeds"),
        color=alt.Color(
            "part:N",
            scale=alt.Scale(domain=shown, range=[colours[title] for title in shown]),
            legend=alt.Legend(title=None),
        ),
        order="order:Q",
        tooltip=["method:N", "part:N", alt.Tooltip("seconds:Q", format=".3~g")],
    )
    total = base.mark_text(align="left", dx=4).encode(
        x="sum(seconds):Q", text=alt.Text("sum(seconds):Q", format=".3~g")
    )
    made = alt.layer(bars, total).add_params(chosen)
    size = {"width": 420, "height": max(24, 12 * lines + 8) * len(labels)}
    return made.properties(**size, usermeta=sizes(left=labels, legend=shown))
