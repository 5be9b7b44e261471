from html import escape
from pathlib import Path

from tepo.analysis.charts import looks_of, run_steps
from tepo.reporting.charts.curves import curve_frame, training_curves
from tepo.reporting.charts.style import specification
from tepo.reporting.colours import look
from tepo.reporting.tables import html_table
from tepo.studies.plan_studies import plan_all
from tepo.studies.study import load_study, study_names
from tests.support.results import facts_of, finish, table_from_store


def test_no_two_rows_of_a_study_look_alike() -> None:
    for name in study_names():
        rows = load_study(name).rows
        different = len({row.look for row in rows})
        assert different == len(rows) or (different > 60 and name == "objectives"), name  # all there are


def test_the_first_row_of_a_method_looks_as_the_method_does() -> None:
    rows = {row.label: row for row in load_study("panel-e").rows}
    assert {label: row.look for label, row in rows.items()} == {
        label: look(row.objective or "base") for label, row in rows.items()
    }


def test_a_row_looks_the_same_in_table_and_chart(tmp_path: Path) -> None:
    """Also in a chart of some rows only, in any order: by its place it would look another way there."""
    words = ["train.steps=2", "data.benchmarks=[add3]"]
    ((study, units),) = plan_all(["panel-a"], "laptop", store=tmp_path, seeds=[0], overrides=words)
    own = {row.label: row.look for row in study.rows}
    some = [unit for unit in reversed(units) if unit.row.objective][:3]
    page = html_table.render(table_from_store(study, units))  # not yet measured: labels without links
    for unit in some:
        finish(unit, 0.5, **{"critic/score/mean": 0.5})
    chart = training_curves(curve_frame(run_steps(some, facts_of(study, units))), looks_of(some))
    encoding = specification(chart)["concat"][0]["encoding"]
    colours, dashes = (
        dict(zip(scale["domain"], scale["range"], strict=True))
        for scale in (encoding[name]["scale"] for name in ("color", "strokeDash"))
    )
    assert list(colours) == list(dashes) == [unit.label for unit in some]
    for label, colour in colours.items():
        style = own[label]
        assert (colour, dashes[label]) == (style.colour, list(style.dash) or [1, 0])
        assert f"{html_table.swatch(style, '')}<span>{escape(label)}</span>" in page
