"""All registered claims in one figure: each difference with its interval and its seeds, beside what the claim says."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tepo.common.text import counted
from tepo.reporting.figures.curves import LINK_INCHES, STYLE

_LOOKS = {"holds": ("#009E73", "o"), "refuted": ("#D55E00", "X")}  # told apart without colour too
_OPEN = ("#767676", "s")
_LINES = 30  # that have room
_LETTERS, _TAIL = 80, 30  # of a claim and its outcome, and of its end where it is cut
_LEFT, _TOP, _BOTTOM, _AXIS = 0.43, 0.81, 0.05, 2.4  # shares of the figure; lines that an axis takes


@dataclass(frozen=True)
class ClaimLine:
    """A claim. pair: "A against B". details: what is compared, how, on which seeds and since when. outcome: empty where
    it is not measured, then it has no numbers; nor has one of times that some runs did not live to see. delta, low,
    high: A above B with its interval; seeds: the difference on each seed; regions: the differences that the claim
    says, from the first to the second, which may be infinite. All in `unit`."""

    name: str
    sentence: str
    pair: str
    details: str
    unit: str
    outcome: str = ""
    delta: float = math.nan
    low: float = math.nan
    high: float = math.nan
    seeds: Sequence[float] = ()
    regions: Sequence[tuple[float, float]] = ()


def by_unit(claims: Sequence[ClaimLine]) -> dict[str, list[ClaimLine]]:
    """The measured claims of each unit: those that hold first, then the refuted ones, the largest differences first."""
    order = {"holds": 0, "refuted": 1}
    units: dict[str, list[ClaimLine]] = {}
    for one in sorted(claims, key=lambda one: (order.get(one.outcome, 2), -one.delta)):
        if one.outcome and not math.isnan(one.delta):
            units.setdefault(one.unit, []).append(one)
    return units


def claims_figure(claims: Sequence[ClaimLine], title: str, what: str) -> Figure:
    """A forest plot in the size of the picture of a link: a panel for each unit, a line a claim. The shaded part of a
    line is what the claim says, so a claim holds where the interval lies within it. Small dots are seeds. what: was
    run, in a sentence."""
    panels, room, left_out = [], float(_LINES), 0
    for panel in sorted(by_unit(claims).values(), key=len, reverse=True):  # units of a few claims go first
        shown = panel[: max(0, math.floor(room - _AXIS))]
        panels += [shown] if shown else []
        room -= len(shown) + _AXIS
        left_out += len(panel) - len(shown)
    more = f" On the page: {counted(left_out, 'further claim')}." if left_out else ""
    with matplotlib.rc_context({**STYLE, "font.size": 8}):
        figure = Figure(figsize=LINK_INCHES)
        figure.text(0.03, 0.96, title, fontsize=21, fontweight="bold", va="top")
        figure.text(0.03, 0.885, textwrap.fill(what, 140), fontsize=11, va="top", color="#444444")
        key = "Shaded: what a claim says. Lines: 90% intervals of A above B (95% where it has two ends). Dots: seeds."
        figure.text(0.03, 0.02, key + more, fontsize=10, color="#444444")
        line = (_TOP - _BOTTOM) / sum(len(panel) + _AXIS for panel in panels)
        above = _TOP
        for panel in panels:
            _draw(figure.add_axes((_LEFT, above - line * len(panel), 0.97 - _LEFT, line * len(panel))), panel)
            above -= line * (len(panel) + _AXIS)
        return figure


def _draw(axes: Axes, claims: Sequence[ClaimLine]) -> None:
    stated = [end for one in claims for region in one.regions for end in region if math.isfinite(end)]
    ends = [*stated, *(end for one in claims for end in (one.low, one.high, *one.seeds))]
    left, right = min([*ends, 0.0]), max([*ends, 0.0])
    room = 0.04 * (right - left or 1.0)
    left, right = left - room, right + room
    for place, one in enumerate(reversed(claims)):
        colour, marker = _LOOKS.get(one.outcome, _OPEN)
        for low, high in one.regions:
            ends = [max(low, left), min(high, right)]
            axes.fill_between(ends, place - 0.42, place + 0.42, color="#e9eef5", linewidth=0)
        axes.plot(one.seeds, [place] * len(one.seeds), ".", color=colour, markersize=4, alpha=0.45)
        axes.plot([one.low, one.high], [place, place], color=colour, linewidth=1.8, solid_capstyle="butt")
        axes.plot([one.delta], [place], marker, color=colour, markersize=5.5)
    axes.axvline(0, color="#333333", linewidth=0.8)
    axes.set_xlim(left, right)
    axes.set_ylim(-0.6, len(claims) - 0.4)
    names = [f"{_cut(one.sentence, _LETTERS - len(one.outcome))}: {one.outcome}" for one in reversed(claims)]
    axes.set_yticks(range(len(claims)), names)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"A above B, {claims[0].unit}")


def _cut(sentence: str, letters: int) -> str:
    """The sentence, or its first and last words: claims of a batch often differ in their ends alone."""
    if len(sentence) <= letters:
        return sentence
    words = sentence.split()
    while len(" ".join(words)) > _TAIL:
        words.pop(0)
    return f"{textwrap.shorten(sentence, letters - _TAIL - 1, placeholder=' …')} {' '.join(words)}"
