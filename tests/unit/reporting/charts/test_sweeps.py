import math
from typing import Any

import pandas as pd
import pytest

from tepo.reporting.charts.sweeps import sweep_map
from tests.unit.reporting.charts.drawing import HOSTILE, LABELS, items, marks, opacities, said, selections, unread

RATES = ("1e-4", "4e-4", "1e-3")
SCORES = {"stands": (68.0, 66.0, 60.0), "falls": (70.0, 0.5, math.nan)}


def cells(values: tuple[str, ...] = RATES, rows: Any = SCORES) -> pd.DataFrame:
    every = [(row, value, mean) for row, means in rows.items() for value, mean in zip(values, means, strict=True)]
    frame = pd.DataFrame(every, columns=["method", "value", "mean"])
    return frame.assign(ended=(frame["mean"] < 1).astype(int), interval="[1, 2]", runs="0: r0", lost=3.3)


def test_a_cell_has_its_number_its_shade_and_a_frame_where_runs_ended() -> None:
    chart = sweep_map(cells(), "rate")
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


def test_every_label_is_read_in_full_and_a_chosen_method_stands_out() -> None:
    for width in (355, 760):
        assert unread(sweep_map(cells(RATES, dict.fromkeys(LABELS, (68.0, 66.0, 0.5))), "rate"), LABELS, width) == []
    chart = sweep_map(cells(), "rate")
    assert selections(chart) == [("method", ["method"])]
    found = opacities(chart, "stands")
    assert max(found["falls"]) < 0.5 < max(found["stands"]) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_what_varies_is_text(name: str) -> None:
    assert unread(sweep_map(cells((name, "b", "c")), name), [name]) == []
