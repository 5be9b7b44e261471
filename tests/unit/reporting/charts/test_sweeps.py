"""Charts of sweeps and of tuned settings: every cell and point at its value, and each row told apart."""

import math
from typing import Any

import pandas as pd
import pytest

from tepo.reporting.charts.style import Chart, Looks, specification
from tepo.reporting.charts.sweeps import sweep_lines, sweep_map, tried
from tests.unit.reporting.charts.drawing import (
    HOSTILE,
    LABELS,
    items,
    marks,
    opacities,
    said,
    scales,
    selections,
    unread,
)

LOOKS: Looks = {"stands": ("tepo", None), "falls": ("gspo", None)}
RATES = ("1e-4", "4e-4", "1e-3")
SCORES = {"stands": (68.0, 66.0, 60.0), "falls": (70.0, 0.5, math.nan)}


def cells(values: tuple[str, ...], rows: Any = SCORES) -> pd.DataFrame:
    every = [(row, value, mean) for row, means in rows.items() for value, mean in zip(values, means, strict=True)]
    frame = pd.DataFrame(every, columns=["method", "value", "mean"])
    frame = frame.assign(low=frame["mean"] - 1, high=frame["mean"] + 1, ended=(frame["mean"] < 1).astype(int))
    return frame.assign(interval="[1, 2]", runs="0: r0", lost=3.3)


def test_a_cell_has_its_number_its_shade_and_a_frame_where_runs_ended() -> None:
    chart = sweep_map(cells(RATES), "rate")
    words = [(item["text"], said(item)["method"], said(item)["rate"]) for item in items(chart, "text")]
    texts = ("68.0", "66.0", "60.0", "70.0", "0.5†", "–")
    assert words == list(zip(texts, ["stands"] * 3 + ["falls"] * 3, RATES * 2, strict=True))
    places = [(item["y"], item["x"]) for item in items(chart, "text")]
    assert places == sorted(set(places)), "rows and values in their order"
    shades, framed = marks(chart, "rect")
    assert len({item["fill"] for item in shades}) == 5
    assert [(said(item)["method"], said(item)["rate"]) for item in framed] == [("falls", "4e-4")]
    names = {"method", "rate", "accuracy, %", "95% interval", "seed", "runs that ended early"}
    assert names <= set(said(shades[0]))


@pytest.mark.parametrize(
    ("values", "log"),
    [
        (RATES, True),
        (("1", "2", "3"), False),
        (("0", "1", "100"), False),
        (("-1", "1", "100"), False),
        (("off", "1", "2"), None),
        (("nan", "1", "20"), None),
        (("inf", "1", "20"), None),
    ],
)
def test_lines_lie_at_their_values(values: tuple[str, ...], log: bool | None) -> None:
    chart = sweep_lines(cells(values, {"stands": (1.0, 2.0, 4.0), "falls": (2.0, 3.0, math.nan)}), "rate", LOOKS)
    first, second = marks(chart, "line")
    assert [item["y"] for item in first] == pytest.approx([260 - 260 * mean / 5 for mean in (1, 2, 4)])
    assert [said(item)["mean"] for item in second if item.get("defined", True)] == ["2.0", "3.0"]
    at = [0.0, 1.0, 2.0] if log is None else [math.log(float(one)) if log else float(one) for one in values]
    across = [item["x"] - first[0]["x"] for item in first]
    assert across == pytest.approx([across[-1] * (one - at[0]) / (at[-1] - at[0]) for one in at])
    assert scales(chart, "color")[0] == {"domain": ["stands", "falls"], "range": ["#D55E00", "#0072B2"]}
    assert [len(area) for area in marks(chart, "area")] == [3, 3]


def settings(rows: tuple[str, ...] = ("stands", "falls")) -> pd.DataFrame:
    """Of each row the default, the chosen setting, and one that has not all seeds."""
    each = [(0.01, 30.0, True, False, False), (0.1, 40.0, True, True, True), (1.0, 50.0, False, True, False)]
    columns = ["row", "method", "at", "score", "complete", "drawn", "chosen"]
    return pd.DataFrame([(row, row, *one) for row in rows for one in each], columns=columns)


@pytest.mark.parametrize("log", [True, False])
def test_settings_tried_have_a_panel_a_row(log: bool) -> None:
    chart = tried(settings(), "rate", LOOKS, log=log)
    assert [panel["title"] for panel in specification(chart)["concat"]] == [["stands"], ["falls"]]
    for panel, colour in enumerate(("#D55E00", "#0072B2")):
        points, (ring,) = marks(chart, "symbol", panel)
        looks = [(item["shape"], item["fill"], item["stroke"]) for item in points]
        assert looks == [("diamond", colour, colour), ("circle", colour, colour), ("circle", "white", colour)]
        assert (ring["x"], ring["y"]) == (points[1]["x"], points[1]["y"])
        left, middle, right = (item["x"] for item in points)
        assert (middle - left) / (right - left) == pytest.approx(0.5 if log else 0.09 / 0.99)


def drawn(kind: str, labels: tuple[str, ...]) -> Chart:
    looks: Looks = dict.fromkeys(labels, ("tepo", None))
    rows = dict.fromkeys(labels, (68.0, 66.0, 0.5))
    match kind:
        case "map":
            return sweep_map(cells(RATES, rows), "rate")
        case "lines":
            return sweep_lines(cells(RATES, rows), "rate", looks)
    return tried(settings(labels), "rate", looks, log=True)


@pytest.mark.parametrize("kind", ["map", "lines", "tried"])
def test_every_label_is_read_in_full_and_a_chosen_method_stands_out(kind: str) -> None:
    for width in (355, 760):
        assert unread(drawn(kind, LABELS), LABELS, width) == []
    chart = drawn(kind, ("stands", "falls"))
    assert selections(chart) == [("method", ["method"])]
    found = opacities(chart, "stands")
    assert max(found["falls"]) < 0.5 < max(found["stands"]) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_what_varies_is_text(name: str) -> None:
    frame = cells((name, "b", "c"))
    assert unread(sweep_map(frame, name), [name]) == unread(sweep_lines(frame, name, LOOKS), [name]) == []
