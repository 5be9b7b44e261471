"""Colour and dash are a row's own: in the tables of its study, in every figure of it, on the page."""

from dataclasses import replace
from html import escape
from pathlib import Path

from tepo.analysis.figures import curves
from tepo.analysis.tables import study_table
from tepo.reporting.colours import look
from tepo.reporting.figures.curves import STEP, training_figure
from tepo.reporting.tables.renderers import html_table
from tepo.studies.plan_studies import plan_all
from tepo.studies.study import load_study, study_names


def test_no_two_rows_of_a_study_look_alike() -> None:
    for name in study_names():
        rows = load_study(name).rows
        assert len({row.look for row in rows}) == len(rows), name


def test_the_first_row_of_a_method_looks_as_the_method_does() -> None:
    rows = {row.label: row for row in load_study("panel-e").rows}
    assert {label: row.look for label, row in rows.items()} == {
        label: look(row.objective or "base") for label, row in rows.items()
    }


def test_a_row_looks_the_same_in_table_plot_and_legend(tmp_path: Path) -> None:
    """Also in a figure of some rows only, in any order: by its place it would look another way there."""
    ((study, units),) = plan_all(["panel-a"], "laptop", store=tmp_path)
    own = {row.label: row.look for row in study.rows}
    some = [unit for unit in reversed(units) if unit.row.objective][:3]
    drawn = training_figure(
        [replace(curve, rows=[{STEP: step, "critic/score/mean": 0.5} for step in (1, 2)]) for curve in curves(some)]
    )
    page = html_table.render(study_table(study, "laptop", units))
    lines = {str(line.get_label()): line for line in drawn.axes[0].lines}
    legend = dict(
        zip((text.get_text() for text in drawn.legends[0].get_texts()), drawn.legends[0].get_lines(), strict=True)
    )
    assert len(lines) == len(legend) == 3
    for label, line in lines.items():
        style = own[label]
        assert line.get_color() == legend[label].get_color() == style.colour
        assert line.is_dashed() == legend[label].is_dashed() == bool(style.dash)
        assert f"{html_table.swatch(style, '')}<span>{escape(label)}</span>" in page
