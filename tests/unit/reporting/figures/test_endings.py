"""Rows and curves of runs that ended before their last step, and what curves may be drawn against."""

from dataclasses import replace

import numpy as np
import pytest

from tepo.common.errors import UserError
from tepo.reporting.figures.curves import STEP, RunCurves, training_figure
from tepo.reporting.figures.paper_figures import paper_figure
from tepo.reporting.paper.reference import RowKey, reference_row
from tepo.reporting.tables.build_table import TableSpec, build_table
from tepo.reporting.tables.render import as_text
from tests.unit.reporting.samples import BENCHMARKS, ROWS, samples


def test_a_row_that_ended_early_has_a_mark_and_a_note() -> None:
    """The paper's row of the same name has none, and the row is compared as others are."""
    rows = [replace(row, endings=("seed 0: collapse at step 5",) if row.key == "c" else ()) for row in ROWS]
    reference = {"c": reference_row(RowKey("table1", method="tepo"))}
    spec = TableSpec(rows, BENCHMARKS, name="t", title="T", baseline="GRPO/DAPO", reference=reference)
    graded = samples({"a": 0.3, "b": 0.31, "c": 0.7})
    table, plain = build_table(graded, spec), build_table(graded, replace(spec, rows=ROWS))
    measured, printed = table.blocks
    assert [row.label.endswith(" †") for row in measured.rows] == [False, False, True, False]
    assert not any("†" in row.label for row in printed.rows)
    assert [row.cells for row in measured.rows] == [row.cells for row in plain.blocks[0].rows]
    (note,) = set(table.notes) - set(plain.notes)
    assert note.startswith("† Training ended early")
    assert note.endswith("[x_y] (seed 0: collapse at step 5).")
    for form, mark in (("markdown", "†"), ("latex", r"$\dagger$"), ("csv", "†")):
        assert mark in as_text(table, form)
        assert mark not in as_text(plain, form)


def rows(rewards: list[float], *more: tuple[str, list[float]]) -> list[dict[str, float]]:
    columns = {STEP: range(1, len(rewards) + 1), "critic/score/mean": rewards} | dict(more)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_a_curve_that_ended_early_has_a_cross_at_its_last_step() -> None:
    """The line is the mean of the seeds up to there."""
    ended = RunCurves("TEPO", "tepo", 0, rows([0.4, 0.2]), ended=True)
    full = RunCurves("TEPO", "tepo", 1, rows([0.4, 0.6, 0.8]))
    at_once = RunCurves("TEPO", "tepo", 2, [], ended=True)
    (axes,) = training_figure([ended, full, at_once]).axes
    line, cross = axes.lines
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([1, 2], pytest.approx([40, 40]))
    assert (list(cross.get_xdata()), list(cross.get_ydata()), cross.get_marker()) == ([2], [20], "X")
    assert axes.get_legend_handles_labels()[1] == ["TEPO"]
    (axes,) = training_figure([replace(ended, ended=False), full]).axes
    assert len(axes.lines) == 1


@pytest.mark.parametrize(
    ("against", "points", "cross"), [("steps", [1, 2], 2), ("samples", [150, 350], 400), ("kl", [0.2, 0.45], 0.3)]
)
def test_curves_against_samples_or_summed_kl(against: str, points: list[float], cross: float) -> None:
    """A point lies at the mean of the seeds' positions: of 100 and 200 samples, then 400 and 300."""
    one = rows([0.4, 0.2], ("training/responses", [100, 400]), ("actor/realised_kl_k3", [0.1, 0.2]))
    other = rows([0.4, 0.6], ("training/responses", [200, 300]), ("actor/realised_kl_k3", [0.3, 0.3]))
    runs = [RunCurves("TEPO", "tepo", 0, one, ended=True), RunCurves("TEPO", "tepo", 1, other)]
    (axes,) = training_figure(runs, against=against).axes
    np.testing.assert_allclose(axes.lines[0].get_xdata(), points)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [40, 40])
    np.testing.assert_allclose(axes.lines[1].get_xdata(), [cross])


def test_runs_that_do_not_hold_an_axis_say_so() -> None:
    old = [RunCurves("TEPO", "tepo", 0, rows([0.4, 0.2]))]
    assert paper_figure("3a", old, against="steps").axes
    for against in ("samples", "kl"):
        with pytest.raises(UserError, match=against):
            paper_figure("3a", old, against=against)
