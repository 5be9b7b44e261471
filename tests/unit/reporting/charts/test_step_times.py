"""The stacked bar of a step: its parts add up to what was timed, and waiting is taken from its phase."""

import pandas as pd
import pytest

from tepo.reporting.charts.step_times import step_parts, step_time_frame, step_times
from tests.unit.reporting.charts.drawing import LABELS, items, opacities, said, scales, selections, unread

ROW = {f"timing_s/{name}": seconds for name, seconds in [("step", 10.0), ("gen", 4.0), ("reward", 1.0)]}
ROW |= {"timing_s/update_actor": 3.0, "timing_s/sync": 0.5, "timing_s/save_checkpoint": 2.0}
TWICE = {name: 2 * value for name, value in ROW.items()}
SEVERAL = ROW | {"timing_s/gather": 1.0, "perf/bubble/gen": 0.5, "perf/bubble/update_actor": 0.25}


def steps(*runs: tuple[str, list[dict[str, float]]]) -> pd.DataFrame:
    return pd.DataFrame([{"method": method, **row} for method, rows in runs for row in rows])


@pytest.mark.parametrize(
    ("row", "total", "known"),
    [
        (ROW, 12, {"gen": 4, "reward": 1, "rest": 1.5, "save_checkpoint": 2, "waiting": 0}),
        # half of the rollout's 6 s and a quarter of the updates' 3 s; sampling and grading keep their proportion
        (SEVERAL, 12, {"waiting": 3.75, "gen": 2.4, "reward": 0.6, "update_actor": 2.25}),
        ({"timing_s/step": 2.0, "timing_s/gen": 3.0}, 3, {"gen": 3, "rest": 0, "waiting": 0}),
        (ROW | {"perf/bubble/gen": 7.0}, 12, {"gen": 0, "reward": 0, "waiting": 5}),
        ({"timing_s/step": 2.0, "timing_s/sync": 0.5}, 2, {"sync": 0.5, "rest": 1.5}),
        ({"timing_s/step": 3.0}, 0, {}),
        ({"critic/score/mean": 0.5}, 0, {}),
    ],
)
def test_parts_add_up_to_the_step(row: dict[str, float], total: float, known: dict[str, float]) -> None:
    parts = step_parts(row)
    assert sum(parts.values()) == pytest.approx(total)
    assert {name: parts[name] for name in known} == pytest.approx(known)


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
    chart = step_times(step_time_frame(steps(*((label, [SEVERAL]) for label in LABELS))))
    assert unread(chart, [*LABELS, "waiting for other ranks", "12"], width) == []
