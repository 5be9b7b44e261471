"""The stacked bar of a step: its parts add up to what was timed, and waiting is taken from its phase."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from tepo.reporting.figures.curves import RunCurves, svg
from tepo.reporting.figures.step_time_figure import step_parts, step_time_figure

ROW = {
    "timing_s/step": 10.0,
    "timing_s/gen": 4.0,
    "timing_s/reward": 1.0,
    "timing_s/update_actor": 3.0,
    "timing_s/sync": 0.5,
    "timing_s/save_checkpoint": 2.0,
}
SEVERAL = ROW | {"timing_s/gather": 1.0, "perf/bubble/gen": 0.5, "perf/bubble/update_actor": 0.25}


def test_parts_add_up_to_the_step_and_its_checkpoint() -> None:
    parts = step_parts(ROW)
    assert sum(parts.values()) == pytest.approx(12.0)
    assert parts["rest"] == pytest.approx(1.5)
    assert parts["save_checkpoint"] == 2.0
    assert parts["waiting"] == 0.0
    assert step_parts({"critic/score/mean": 0.5}) == {}


def test_waiting_is_taken_from_its_phase() -> None:
    """Half of the rollout's 6 s and a quarter of the updates' 3 s; sampling and grading keep their proportion."""
    parts = step_parts(SEVERAL)
    assert parts["waiting"] == pytest.approx(3.75)
    assert (parts["gen"], parts["reward"]) == pytest.approx((2.4, 0.6))
    assert parts["update_actor"] == pytest.approx(2.25)
    assert sum(parts.values()) == pytest.approx(12.0)


def test_a_record_has_the_step_alone_which_is_no_bar() -> None:
    assert step_parts({"timing_s/step": 3.0}) == {}
    assert step_time_figure([RunCurves("a record", "tepo", 0, [{"timing_s/step": 3.0}])]) is None


def widths(figure: Figure) -> dict[str, list[float]]:
    return {bar.get_label(): [patch.get_width() for patch in bar] for bar in figure.axes[0].containers}


def test_one_bar_a_row_with_means_over_steps_and_seeds() -> None:
    other = {name: 2 * value for name, value in ROW.items()}
    runs = [
        RunCurves("TEPO", "tepo", 1, [ROW, other]),
        RunCurves("TEPO", "tepo", 2, [ROW, ROW]),
        RunCurves("GRPO", "grpo", 1, [other]),
        RunCurves("untimed", "grpo", 1, [{"critic/score/mean": 0.5}]),
    ]
    figure = step_time_figure(runs)
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["TEPO", "GRPO"]
    assert widths(figure)["sampling"] == pytest.approx([5.0, 8.0])
    assert widths(figure)["checkpoint"] == pytest.approx([2.5, 4.0])
    assert "waiting for other ranks" not in widths(figure)
    assert [text.get_text().strip() for text in figure.axes[0].texts] == ["15 s", "24 s"]
    assert svg(figure) == svg(step_time_figure(runs))  # type: ignore[arg-type]
    assert plt.get_fignums() == []


def test_nothing_is_drawn_of_runs_that_were_not_timed() -> None:
    assert step_time_figure([RunCurves("a", "tepo", 1, [])]) is None
