"""Time of a training step by section: a stacked bar for each row, from the sections that `metrics.jsonl` times."""

import altair as alt
import pandas as pd

from tepo.reporting.charts.style import row_axis, selected, sizes, values, wrapped
from tepo.reporting.colours import PALETTE

_STEP, _SECTION = "timing_s/step", "timing_s/"
PARTS = {
    "gen": ("sampling", "blue"),
    "reward": ("waiting for the grader", "sky"),
    "old_log_prob": ("old log-probs", "teal"),
    "adv": ("advantages", "sand"),
    "update_actor": ("updates", "vermillion"),
    "sync": ("weights to the sampler", "purple"),
    "testing": ("validation", "olive"),
    "save_checkpoint": ("checkpoint", "wine"),
    "rest": ("other", "grey"),
}
"""Section -> its name and colour, in the order of a step. A checkpoint is begun after its step and comes on top of the
step's own seconds."""
_LEAST = 0.002  # of a step, to be drawn
_LETTERS = 26  # of a line of a row's label


def step_time_frame(steps: pd.DataFrame) -> pd.DataFrame:
    """Means over steps and seeds: method, part, seconds; empty where no run was timed (a record keeps the whole alone).
    steps: as in `curves.curve_frame`."""
    sections = {name: _SECTION + name for name in PARTS if _SECTION + name in steps}
    timed = steps[list(sections.values())].notna().any(axis=1) if _STEP in steps else pd.Series(dtype=bool)
    if not timed.any():
        return pd.DataFrame(columns=["method", "part", "seconds"])
    parts = steps[timed].reindex(columns=[_SECTION + name for name in PARTS]).fillna(0.0).set_axis(list(PARTS), axis=1)
    within = parts.drop(columns="save_checkpoint").sum(axis=1)
    parts["rest"] = (steps.loc[timed, _STEP] - within).clip(lower=0)
    means = parts.groupby(steps.loc[timed, "method"], sort=False).mean()
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
