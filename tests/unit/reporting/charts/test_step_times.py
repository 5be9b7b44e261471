"""The stacked bar of a step: its parts add up to what was timed."""

import pandas as pd
import pytest

from tepo.reporting.charts.step_times import step_time_frame, step_times
from tests.unit.reporting.charts.drawing import LABELS, items, opacities, said, scales, selections, unread

ROW = {f"timing_s/{name}": seconds for name, seconds in [("step", 10.0), ("gen", 4.0), ("reward", 1.0)]}
ROW |= {"timing_s/update_actor": 3.0, "timing_s/sync": 0.5, "timing_s/save_checkpoint": 2.0}
TWICE = {name: 2 * value for name, value in ROW.items()}


def steps(*runs: tuple[str, list[dict[str, float]]]) -> pd.DataFrame:
    return pd.DataFrame([{"method": method, **row} for method, rows in runs for row in rows])


def test_one_bar_a_row_with_means_over_steps_and_seeds() -> None:
    untimed = ("untimed", [{"critic/score/mean": 0.5}, {"timing_s/step": 3.0}])
    frame = step_time_frame(steps(("TEPO", [ROW, TWICE, ROW, ROW]), ("GRPO", [TWICE]), untimed))
    names = ["sampling", "waiting for the grader", "updates", "weights to the sampler", "checkpoint", "other"]
    assert list(dict.fromkeys(frame["part"])) == names
    chart = step_times(frame)
    bars = items(chart, "rect")
    for row, seconds in (("TEPO", [5, 1.25, 3.75, 0.625, 2.5, 1.875]), ("GRPO", [8, 2, 6, 1, 4, 3])):
        own = sorted((item for item in bars if said(item)["method"] == row), key=lambda item: item["x"])
        assert [said(item)["part"] for item in own] == names, "in the order of a step"
        assert [item["width"] for item in own] == pytest.approx([420 * one / 24 for one in seconds])
    totals = sorted(items(chart, "text"), key=lambda item: item["y"])
    assert [(said(item)["method"], item["text"]) for item in totals] == [("TEPO", "15"), ("GRPO", "24")]
    assert scales(chart, "color")[0]["domain"] == names
    assert selections(chart) == [("method", ["method"])]
    assert opacities(chart, "TEPO") == {"TEPO": {1}, "GRPO": {0.3}}


@pytest.mark.parametrize("rows", [[], [{"timing_s/step": 3.0}], [{"critic/score/mean": 0.5}], [{"timing_s/gen": 3.0}]])
def test_nothing_is_known_of_runs_whose_parts_were_not_timed(rows: list[dict[str, float]]) -> None:
    frame = step_time_frame(steps(("a record", rows)) if rows else pd.DataFrame(columns=["method"]))
    assert (list(frame), len(frame)) == (["method", "part", "seconds"], 0)


@pytest.mark.parametrize("width", [355, 760])
def test_every_label_is_read_in_full(width: int) -> None:
    chart = step_times(step_time_frame(steps(*((label, [ROW]) for label in LABELS))))
    assert unread(chart, [*LABELS, "waiting for the grader", "12"], width) == []
