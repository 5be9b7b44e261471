"""Time of a training step by section: a stacked bar for each row, from the sections that `metrics.jsonl` times."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from tepo.reporting.colours import PALETTE
from tepo.reporting.figures.curves import STYLE, RunCurves, by_label

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


def step_time_figure(runs: Sequence[RunCurves]) -> Figure | None:
    """Means over steps and seeds, one bar a row; None where no run was timed."""
    bars: dict[str, dict[str, float]] = {}
    for label, seeds in by_label(runs).items():
        timed = [parts for run in seeds for row in run.rows if (parts := step_parts(row))]
        if timed:
            bars[label] = {name: float(np.mean([parts[name] for parts in timed])) for name in PARTS}
    if not bars:
        return None
    shown = [name for name in PARTS if any(bar[name] > 0.002 * sum(bar.values()) for bar in bars.values())]
    left_inches = 0.3 + 0.075 * max(map(len, bars))
    width, height = left_inches + 7.5, 0.95 + 0.3 * len(bars) + 0.2 * -(-len(shown) // 5)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        bottom = (0.65 + 0.2 * -(-len(shown) // 5)) / height
        axes = figure.add_axes((left_inches / width, bottom, 6.9 / width, 1 - bottom - 0.28 / height))
        lefts = np.zeros(len(bars))
        for name in shown:
            seconds = np.array([bar[name] for bar in bars.values()])
            title, colour = PARTS[name]
            axes.barh(range(len(bars)), seconds, 0.7, lefts, color=PALETTE[colour], label=title, linewidth=0)
            lefts += seconds
        for index, total in enumerate(lefts):
            axes.text(total, index, f" {total:.3g} s", va="center", fontsize=8)
        axes.set_yticks(range(len(bars)), list(bars))
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.08)
        axes.set_xlim(left=0)
        axes.set_title("Where the time of a step went", loc="left", fontsize=10)
        axes.set_xlabel("seconds, mean over steps and seeds")
        figure.legend(loc="lower center", ncols=5, fontsize=8, bbox_to_anchor=(0.5, 0.02 / height))
        return figure
