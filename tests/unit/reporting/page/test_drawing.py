"""The static drawing of curves: round ticks, labels that do not lie on each other, and a size that many of it have room
in."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from tepo.reporting.figures.curves import STEP, RunCurves
from tepo.reporting.page.charts import chart_data
from tepo.reporting.page.drawing import drawing, spread, ticks


def run(label: str, seed: int, last: float, steps: int = 40, ended: bool = False) -> RunCurves:
    rows = [{STEP: step, "critic/score/mean": last * step / steps, "actor/entropy": 0.5} for step in range(1, steps)]
    return RunCurves(label, "tepo", seed, rows, ended=ended)


@pytest.mark.parametrize(
    ("ends", "log", "expected"),
    [
        ((0, 1), False, [0, 0.5, 1]),
        ((0, 41), False, [0, 20, 40]),
        ((-3, 9), False, [0, 5]),
        ((0.02, 30), True, [0.1, 1, 10]),
        ((2, 3), True, [2, 3]),
    ],
)
def test_ticks_are_round_and_within(ends: tuple[float, float], log: bool, expected: list[float]) -> None:
    assert ticks(*ends, log) == pytest.approx(expected)


def test_labels_are_spread_in_their_order_within_the_ends() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        wanted = list(rng.uniform(0, 100, 8))
        placed = spread(wanted, 10, 0, 100)
        assert np.argsort(placed).tolist() == np.argsort(wanted).tolist()
        assert all(b - a >= 10 - 1e-9 for a, b in pairwise(sorted(placed)))
        assert 0 <= min(placed) <= max(placed) <= 100
    assert spread([20, 80], 10, 0, 100) == [20, 80], "what has room stays"


def test_the_drawing_names_the_rows_that_keep_their_colours() -> None:
    runs = [run(f"row <{index}>", seed, index / 10) for index in range(1, 13) for seed in (0, 1)]
    text = drawing(chart_data(runs, baseline="row <5>"), "Curves & more", 5)
    root = ElementTree.fromstring(text)
    assert root.attrib["aria-label"] == "Curves & more"
    names = [one.text for one in root.iter("text") if one.text and one.text.startswith("row")]
    assert set(names) == {"row <1>", "row <12>", "row <5>"}
    assert text.count('stroke="#b5b5b5"') == 2 * 9, "the others of both panels are grey"
    assert len(text) < 15_000


def test_a_cross_stands_where_a_seed_ended_early() -> None:
    whole, early = run("a", 0, 0.5), run("a", 1, 0.1, steps=9, ended=True)
    cross = r"m-6-6l12 12m0-12l-12 12"
    assert not re.search(cross, drawing(chart_data([whole]), "", 5))
    assert len(re.findall(cross, drawing(chart_data([whole, early]), "", 5))) == 2


def test_a_page_with_many_figures_draws_the_first_panels_alone() -> None:
    rows = [{STEP: step, "critic/score/mean": 0.1, "actor/entropy": 1.0, "actor/grad_norm": 1.0} for step in (1, 2)]
    data = chart_data([RunCurves("a", "tepo", 0, rows)])
    assert [text.count('<g transform="translate') for text in (drawing(data, "", 2), drawing(data, "", 5))] == [2, 3]
