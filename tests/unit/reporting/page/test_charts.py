"""The numbers behind the page's curves: means and bands over seeds, positions on each axis, and long curves thinned."""

import numpy as np
import pytest

from tepo.reporting.figures.curves import STEP, RunCurves, thinned
from tepo.reporting.page.charts import chart_data, means

REWARD, LENGTH, SECONDS, TOKENS = "critic/score/mean", "response_length/mean", "timing_s/step", "perf/sampled_tokens"


def run(label: str, seed: int, rewards: list[float | None], ended: bool = False, **more: float) -> RunCurves:
    rows = [{STEP: step, REWARD: reward, **more} for step, reward in enumerate(rewards, start=1)]
    return RunCurves(label, "tepo", seed, rows, ended=ended)


def test_a_row_has_the_values_of_its_seeds_and_means_where_all_have_one() -> None:
    data = chart_data([run("a", 0, [0.1, 0.2, 0.3]), run("a", 1, [0.3, 0.6]), run("b", 0, [0.5, None, 0.7])])
    assert [panel["title"] for panel in data["panels"]] == ["Reward"]
    first, second = data["rows"]
    assert (first["seeds"], first["at"]["steps"]) == ([0, 1], [1, 2, 3])
    assert first["curves"] == [[[10, 20, 30], [30, 60, None]]]
    assert means(first, 0) == [(0, 20), (1, 40)]
    assert second["curves"] == [[[50, None, 70]]]
    assert means(second, 0) == [(0, 50), (2, 70)]
    assert data["axes"] == [["steps", "training step"]]


def test_of_many_rows_the_baseline_and_both_extremes_are_lifted() -> None:
    rows = [run(f"row {index}", 0, [0.5, index / 10]) for index in range(7)]
    assert chart_data(rows, baseline="row 3")["lifted"] == [0, 3, 6]
    assert chart_data(rows[:6], baseline="row 3")["lifted"] == [], "few rows keep their colours all"


def test_a_panel_is_logarithmic_where_one_row_flattens_the_others() -> None:
    rows = [run(label, 0, [0.1, 0.2]) for label in "abc"]
    assert not chart_data(rows)["panels"][0]["log"]
    assert chart_data([*rows, run("d", 0, [0.1, 4.0])])["panels"][0]["log"]
    assert not chart_data([*rows, run("d", 0, [0.0, 4.0])])["panels"][0]["log"], "a zero has no logarithm"


def test_axes_sum_what_each_step_took() -> None:
    costs = {SECONDS: 2.0, TOKENS: 100.0}
    data = chart_data([run("a", 0, [0.1, 0.2], **costs), run("b", 0, [0.1, 0.2])])
    assert [name for name, _ in data["axes"]] == ["steps", "tokens", "time"]
    assert data["rows"][0]["at"] == {"steps": [1, 2], "tokens": [100, 200], "time": [2, 4]}
    assert list(data["rows"][1]["at"]) == ["steps"]


def test_where_a_seed_ended_early() -> None:
    data = chart_data([run("a", 0, [0.1, 0.2, 0.3]), run("a", 1, [0.3, 0.4], ended=True)])
    assert data["rows"][0]["ends"] == [{"seed": 1, "at": {"steps": 2}, "values": [40]}]


@pytest.mark.parametrize("steps", [200, 401, 1000])
def test_long_curves_keep_their_shape_and_their_sums(steps: int) -> None:
    rewards = [float(value) for value in np.linspace(0, 1, steps)]
    long, short = run("a", 0, rewards, **{SECONDS: 2.0}), run("a", 1, rewards[: steps // 2], **{SECONDS: 2.0})
    slim, other = thinned([long, short], 200)
    assert len(slim.rows) <= 200
    assert slim.rows[-1][STEP] == steps
    assert sum(row[SECONDS] for row in slim.rows) == pytest.approx(2 * steps)
    assert [row[STEP] for row in other.rows[:-1]] == [row[STEP] for row in slim.rows[: len(other.rows) - 1]]
    for row in slim.rows:
        assert row[REWARD] == pytest.approx(rewards[int(row[STEP]) - 1], abs=0.01)


def test_short_curves_are_as_they_were() -> None:
    runs = [run("a", 0, [0.1, 0.2])]
    assert thinned(runs, 200) == runs
    assert chart_data([])["rows"] == []
