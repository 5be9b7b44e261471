"""All registered claims in one figure: each difference with its interval and its seeds, beside what the claim says."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tepo.reporting.figures.curves import STYLE, settled

_LOOKS = {"holds": ("#009E73", "o"), "refuted": ("#D55E00", "X")}  # told apart without colour too
_OPEN = ("#767676", "s")
_ROW = 0.34  # inches


@dataclass(frozen=True)
class ClaimLine:
    """A measured claim. delta, low, high: A above B with its 95% interval; seeds: the difference on each seed; region:
    the differences that the claim says, its ends infinite where it has none. All in `unit`."""

    name: str
    outcome: str
    delta: float
    low: float
    high: float
    seeds: Sequence[float]
    region: tuple[float, float]
    unit: str


def claims_figure(claims: Sequence[ClaimLine]) -> Figure:
    """A forest plot: a panel for each unit, a line a claim, those that hold first. The shaded part of a line is what
    the claim says, so a claim holds where the interval lies within it. Small dots are seeds."""
    units = list(dict.fromkeys(claim.unit for claim in claims))
    order = {"holds": 0, "refuted": 1}
    panels = [
        sorted((one for one in claims if one.unit == unit), key=lambda one: (order.get(one.outcome, 2), -one.delta))
        for unit in units
    ]
    heights = [len(panel) + 1.6 for panel in panels]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.6, _ROW * sum(heights) + 0.3), layout="constrained")
        grid = figure.add_gridspec(len(panels), 1, height_ratios=heights)
        for number, panel in enumerate(panels):
            _draw(figure.add_subplot(grid[number]), panel)
        return settled(figure)


def _draw(axes: Axes, claims: Sequence[ClaimLine]) -> None:
    ends = [end for one in claims for end in (one.low, one.high, *one.seeds, *filter(math.isfinite, one.region))]
    left, right = min([*ends, 0.0]), max([*ends, 0.0])
    room = 0.04 * (right - left or 1.0)
    left, right = left - room, right + room
    for place, one in enumerate(reversed(claims)):
        colour, marker = _LOOKS.get(one.outcome, _OPEN)
        low, high = max(one.region[0], left), min(one.region[1], right)
        axes.fill_between([low, high], place - 0.42, place + 0.42, color="#e9eef5", linewidth=0)
        axes.plot(one.seeds, [place] * len(one.seeds), ".", color=colour, markersize=4, alpha=0.45)
        axes.plot([one.low, one.high], [place, place], color=colour, linewidth=1.8, solid_capstyle="butt")
        axes.plot([one.delta], [place], marker, color=colour, markersize=5.5)
    axes.axvline(0, color="#333333", linewidth=0.8)
    axes.set_xlim(left, right)
    axes.set_ylim(-0.6, len(claims) - 0.4)
    axes.set_yticks(range(len(claims)), [f"{one.name}: {one.outcome}" for one in reversed(claims)], fontsize=8)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"A above B, {claims[0].unit}")
