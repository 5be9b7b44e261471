import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

from tepo.reporting.charts.forest import claims, differences
from tepo.reporting.charts.style import Chart
from tests.unit.reporting.charts.drawing import LABELS, items, said, scales, unread

NAN, INF = math.nan, math.inf
Row = tuple[float, float, float]
USUAL = ((-3.0, -4.0, -2.0), (0.5, -0.5, 1.5), (2.0, 1.0, 3.0))
FAR = ((-400.0, -420.0, -380.0), (1.0, -300.0, 300.0), (900.0, NAN, NAN), (-2.0, -INF, 1.0))


def frame(rows: Sequence[Row], **more: Any) -> pd.DataFrame:
    made = pd.DataFrame(rows, columns=["delta", "low", "high"]).assign(method=list("abcdefghijkl")[: len(rows)])
    return made.assign(**{"verdict": "worse", "said": "in words", **more})


def places(chart: Chart, *values: float) -> Any:
    """Pixels of values."""
    low, high = scales(chart, "x")[0]["domain"]
    return pytest.approx([420 * (value - low) / (high - low) for value in values])


def drawn(chart: Chart) -> tuple[dict[str, float], list[tuple[str, str, float]], dict[str, tuple[float, float]]]:
    """Places of the points and of the arrows, and of the intervals their ends."""
    symbols = [(said(item)["method"], item["shape"], item["x"]) for item in items(chart, "symbol")]
    arrows = [one for one in symbols if one[1] in ("triangle-left", "triangle-right")]
    rules = {said(item)["method"]: (item["x"], item["x2"]) for item in items(chart, "rule") if item["strokeWidth"] == 2}
    return {method: x for method, shape, x in symbols if (method, shape, x) not in arrows}, arrows, rules


@pytest.mark.parametrize(
    "rows", [USUAL, ((0.0, 0.0, 0.0),), ((1e-9, -1e-9, 3e-9),), ((1234.5, 1200.0, 1300.0), (-3.0, -5.0, -1.0))]
)
def test_a_point_stands_where_its_number_is(rows: Sequence[Row]) -> None:
    chart = differences(frame(rows), ["points"])
    low, high = scales(chart, "x")[0]["domain"]
    assert low < min(0, *(row[1] for row in rows)) <= max(0, *(row[2] for row in rows)) < high
    points, arrows, intervals = drawn(chart)
    assert (list(points.values()), arrows) == (places(chart, *(row[0] for row in rows)), [])
    assert [end for ends in intervals.values() for end in ends] == places(
        chart, *(end for row in rows for end in row[1:])
    )


def test_what_lies_beyond_the_scale_is_an_arrow_and_no_point() -> None:
    chart = differences(frame((*USUAL, *FAR)), ["points"])
    points, arrows, intervals = drawn(chart)
    assert (list(points), list(points.values())) == (list("abceg"), places(chart, -3, 0.5, 2, 1, -2))
    left, right = [(row, "triangle-left", 0) for row in "deg"], [(row, "triangle-right", 420) for row in "ef"]
    assert arrows == left + right
    assert [*intervals["a"], intervals["g"][1]] == places(chart, -4, -2, 1)
    assert (intervals["d"], intervals["e"], intervals["g"][0], "f" in intervals) == ((0, 0), (0, 420), 0, False)
    low, high = scales(chart, "x")[0]["domain"]
    assert -40 < low < -4 < 3 < high < 40


def claimed(*regions: Sequence[tuple[float, float]], **more: Any) -> pd.DataFrame:
    rows = frame(USUAL, regions=list(regions), seeds=[[-2.5, 900.0]] * 3, method=["b", "a", "c"])
    return rows.assign(**{"unit": "points", **more})


@pytest.mark.parametrize(
    ("regions", "shaded"),
    [([(2.0, INF)], True), ([(-INF, -2.0), (2.0, INF)], True), ([(5000.0, INF)], False), ([], False)],
)
def test_what_a_claim_says_is_shaded(regions: list[tuple[float, float]], shaded: bool) -> None:
    chart = claims(claimed(regions, [(-1.0, 1.0)], [(0.0, INF)]))
    low, high = scales(chart, "x")[0]["domain"]
    rules = [item for item in items(chart, "rule") if item["strokeWidth"] > 2 and said(item)["method"] == "b"]
    ends = [end for first, last in regions if shaded for end in (max(first, low), min(last, high))]
    assert [end for item in rules for end in (item["x"], item["x2"])] == places(chart, *ends)


@pytest.mark.parametrize("width", [355, 760])
def test_every_label_is_read_in_full(width: int) -> None:
    count = len(LABELS)
    rows = frame([(1.0, 0.0, 2.0)] * count, seeds=[[1.0]] * count, regions=[[(1.0, INF)]] * count)
    rows = rows.assign(method=LABELS, unit="points")
    for chart in (differences(rows, LABELS[:1]), claims(rows)):
        assert unread(chart, LABELS, width) == []
