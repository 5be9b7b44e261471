"""The papers' figures: each draws its own metric, and says what is missing."""

import numpy as np
import pytest

from tepo.common.errors import UserError
from tepo.reporting.figures.benchmarks_figure import benchmark_figure
from tepo.reporting.figures.curves import RunCurves, svg
from tepo.reporting.figures.paper_figures import paper_figure
from tepo.reporting.tables.table import Table


def runs(*metrics: str) -> list[RunCurves]:
    rows = [
        {"training/global_step": step, **{metric: 0.1 * step + place for place, metric in enumerate(metrics)}}
        for step in (1, 2, 3)
    ]
    return [RunCurves("GRPO/DAPO", "grpo_dapo", 0, rows), RunCurves("TEPO", "tepo", 0, rows)]


@pytest.mark.parametrize(
    ("name", "metric", "last"),
    [
        ("2a", "actor/pg_clipfrac", 30.0),
        ("2b", "timing_s/step", 0.3),
        ("3a", "critic/score/mean", 30.0),
        ("3b", "actor/grad_norm", 0.3),
        ("v1-4", "actor/entropy", 0.3),
        ("v1-5", "critic/score/mean", 30.0),
        ("gtpo-1", "actor/entropy", 0.3),
        ("gtpo-2", "response_length/mean", 0.3),
    ],
)
def test_curves_of_one_metric(name: str, metric: str, last: float) -> None:
    figure = paper_figure(name, runs(metric))
    assert len(figure.axes) == 1
    assert [line.get_label() for line in figure.axes[0].lines] == ["GRPO/DAPO", "TEPO"]
    assert figure.axes[0].lines[0].get_ydata()[-1] == pytest.approx(last)


def test_best_of_k_takes_the_largest_groups_of_the_runs() -> None:
    held = runs("critic/score/best@2", "critic/score/best@8", "critic/score/best@4")
    assert paper_figure("gtpo-3", held).axes[0].get_title(loc="left") == "Best of 8 responses"
    second = paper_figure("gtpo-4", held).axes[0]
    assert second.get_title(loc="left") == "Best of 4 responses"
    assert second.lines[0].get_ydata()[0] == pytest.approx(210)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2c", "did you mean '2[ab]'"),
        ("3a", "no run holds critic/score/mean"),
        ("gtpo-3", "no metric critic/score/best@k"),
        ("v1-1", "drawn from a result table"),
    ],
)
def test_what_is_missing_is_named(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        paper_figure(name, runs("actor/lr"))


def test_benchmarks_as_bars_with_intervals_and_radar(table: Table) -> None:
    block = table.blocks[0]
    figure = paper_figure("v1-1", [], block)
    radar, bars = figure.axes
    heights = [
        [bar.get_height() for bar in container.patches]
        for container in bars.containers
        if hasattr(container, "patches")
    ]
    measured = [[cell.mean for cell in row.cells[:2]] for row in block.rows if row.cells[0].mean is not None]
    np.testing.assert_allclose(heights, measured)
    assert [label.get_text() for label in bars.get_xticklabels()] == ["add3", "gcd"]
    assert len(radar.lines) == len(measured) == 3
    assert "Not run" not in svg(figure)


def test_no_measured_row_is_an_empty_figure(table: Table) -> None:
    block = table.blocks[0]
    empty = benchmark_figure(type(block)(block.title, block.columns, block.rows[3:]))
    assert len(empty.axes[1].containers) == 0
