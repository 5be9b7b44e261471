"""The curves of a figure as a small static drawing, for paper and where no scripts run: means over seeds, the range of
the seeds, a cross where a seed ended early, labels at the ends of the lines."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from tepo.reporting.page.charts import means

_WIDTH, _HEIGHT, _ACROSS = 330, 175, 2  # of a panel, in points, and panels in a line
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 112, 22, 34  # around the axes: ticks, labels of lines, title, axis
_LINE = 10  # of text
_LETTERS = 22  # of a label at the end of a line
_GREY = "#b5b5b5"
_BEHIND, _AHEAD = 12, 40  # points of a grey line and of one in colour, about
_APART = 2  # points of a line for one of its band
_FINE = 2  # parts of a point in which lines are drawn


def drawing(data: Mapping[str, Any], caption: str, most: int) -> str:
    """An SVG element of about 3 kB a panel. data: of `chart_data`. most: panels that are drawn, the first ones."""
    panels = min(most, len(data["panels"]))
    across = min(_ACROSS, panels)
    named = data["lifted"] or range(len(data["rows"]))
    parts = [
        f'<g transform="translate({_WIDTH * (index % across)} {_HEIGHT * (index // across)})">'
        f"{_panel(data, index, named)}</g>"
        for index in range(panels)
    ]
    width, height = _WIDTH * max(1, across), _HEIGHT * -(-panels // max(1, across))
    return (
        f'<svg class="drawn" role="img" aria-label="{escape(caption)}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="9" '
        f'fill="none" stroke-linejoin="round">{"".join(parts)}</svg>'
    )


def ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Round values within the ends: about four, or powers of ten."""
    if log:
        powers = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
        return powers if len(powers) > 1 else [low, high]
    size = (high - low or 1.0) / 4
    power = 10.0 ** math.floor(math.log10(size))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= size * (1 - 1e-9))
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, in their order, at least so far apart and within the ends where they fit."""
    order = np.argsort(wanted, kind="stable")
    placed = list(wanted)
    lowest = low
    for index in order:
        placed[index] = lowest = max(wanted[index], lowest)
        lowest += apart
    highest = high
    for index in order[::-1]:
        placed[index] = highest = min(placed[index], highest)
        highest -= apart
    return placed


def _panel(data: Mapping[str, Any], panel: int, named: Iterable[int]) -> str:
    about, log = data["panels"][panel], data["panels"][panel]["log"]
    lines = {index: own for index, row in enumerate(data["rows"]) if (own := means(row, panel))}
    every = [value for own in lines.values() for _, value in own]
    steps = [data["rows"][index]["at"]["steps"][at] for index, own in lines.items() for at, _ in own]
    low, high = (min(every), max(every)) if every else (0.0, 1.0)
    low = low if log or low < 0 or low > 0.6 * high else 0.0
    high = high if high > low else low + 1.0
    wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    first, last = (min(steps), max(steps)) if steps else (0, 1)

    def x(value: float) -> float:
        return _LEFT + wide * (value - first) / (last - first or 1)

    def y(value: float) -> float:
        a, b, c = (math.log(max(part, 1e-12)) for part in (low, high, value)) if log else (low, high, value)
        return _TOP + tall * (1 - (min(max(c, a), b) - a) / (b - a or 1))

    text = [f'<text x="{_LEFT}" y="12" fill="#222"><tspan font-weight="600">{escape(about["title"])}</tspan> '
            f'{escape(about["unit"])}{" (logarithmic)" if log else ""}</text>']  # fmt: skip
    for value in ticks(low, high, log):
        text.append(f'<path stroke="#ddd" d="M{_LEFT} {y(value):.1f}h{wide}"/>')
        text.append(_text(_LEFT - 4, y(value) + 3, "end", _plain(value)))
    for value in ticks(first, last):
        text.append(_text(x(value), _HEIGHT - _BOTTOM + 12, "middle", _plain(value)))
    text.append(_text(_LEFT + wide / 2, _HEIGHT - 9, "middle", "training step"))
    front = [index for index in lines if not data["lifted"] or index in data["lifted"]]
    order = [*(index for index in lines if index not in front), *front]
    drawn = "".join(_line(data["rows"][index], panel, lines[index], index in front, x, y) for index in order)
    text.append(f'<g transform="scale({1 / _FINE:g})">{drawn}</g>')
    ends = [index for index in named if index in lines]
    places = spread([y(lines[index][-1][1]) for index in ends], _LINE, _TOP, _HEIGHT - _BOTTOM)
    for index, place in zip(ends, places, strict=True):
        row = data["rows"][index]
        label = row["label"] if len(row["label"]) <= _LETTERS else row["label"][: _LETTERS - 1] + "…"
        text.append(_text(_WIDTH - _RIGHT + 5, place + 3, "start", escape(label), row["colour"]))
    return "".join(text)


def _line(row: Mapping[str, Any], panel: int, own: list[tuple[int, float]], front: bool, x: Any, y: Any) -> str:
    """Line, band and crosses of a row, in parts of a point."""
    at, own = row["at"]["steps"], _fewer(own, _AHEAD if front else _BEHIND)
    path = _path([(x(at[index]), y(value)) for index, value in own])
    if not front:
        return f'<path stroke="{_GREY}" stroke-width="{_FINE}" d="{path}"/>'
    colour = row["colour"]
    dash = f' stroke-dasharray="{" ".join(f"{1.3 * _FINE * part:g}" for part in row["dash"])}"' if row["dash"] else ""
    band = ""
    if len(row["seeds"]) > 1:
        some = [*own[:-1:_APART], own[-1]]
        seeds = [[seed[index] for seed in row["curves"][panel] if seed[index] is not None] for index, _ in some]
        places = [x(at[index]) for index, _ in some]
        high, low = ([y(pick(values)) for values in seeds] for pick in (max, min))
        around = _path([*zip(places, high, strict=True), *list(zip(places, low, strict=True))[::-1]])
        band = f'<path fill="{colour}" fill-opacity=".14" d="{around}z"/>'
    size = 3 * _FINE
    marks = "".join(
        f'<path stroke="{colour}" stroke-width="{1.6 * _FINE:g}" d="{_path([(x(end["at"]["steps"]), y(value))])}'
        f'm{-size}{-size}l{2 * size} {2 * size}m0{-2 * size}l{-2 * size} {2 * size}"/>'
        for end in row["ends"]
        if (value := end["values"][panel]) is not None
    )
    return f'{band}<path stroke="{colour}" stroke-width="{1.5 * _FINE:g}"{dash} d="{path}"/>{marks}'


def _fewer(own: list[tuple[int, float]], points: int) -> list[tuple[int, float]]:
    """The first point, the last and every so many between."""
    apart = max(1, len(own) // points)
    return [*own[:-1:apart], own[-1]]


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Steps from point to point in whole parts of a point, with the fewest letters."""
    rounded = [(round(_FINE * a), round(_FINE * b)) for a, b in points]
    moves = [(c - a, d - b) for (a, b), (c, d) in pairwise(rounded)]
    words = "".join(f"{' ' if a >= 0 else ''}{a}{' ' if b >= 0 else ''}{b}" for a, b in moves or [(0, 0)])
    return f"M{rounded[0][0]} {rounded[0][1]}l{words}"


def _text(x: float, y: float, anchor: str, text: str, colour: str = "#444") -> str:
    return f'<text x="{x:.4g}" y="{y:.4g}" text-anchor="{anchor}" fill="{colour}">{text}</text>'


def _plain(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")
