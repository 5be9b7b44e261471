"""Single runs of a study: read from the store, grouped, in the table and in the figure."""

from pathlib import Path

import numpy as np
import pytest

from tepo.reporting.figures.curves import svg
from tepo.results.figures import draw_study
from tepo.results.run_scores import study_groups, with_profiles
from tepo.results.tables import study_table
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_studies
from tepo.studies.study import Study, parse_study
from tests.unit.studies.measured import finish

OWN = """
title: Three rows
baseline: plain
rows:
  - {label: untrained, base: true}
  - {label: plain, objective: grpo_dapo}
  - {label: with a penalty, objective: tepo}
  - {label: sequences, objective: gspo}
scales:
  laptop: {models: [laptop], seeds: [3, 4, 5], overrides: ["data.benchmarks=[add3]", "train.steps=2"]}
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    (tmp_path / "mine.yaml").write_text(OWN)
    return parse_study(tmp_path / "mine.yaml")


@pytest.fixture
def units(study: Study, tmp_path: Path) -> list[Unit]:
    ((_, units),) = plan_studies([study], "laptop", store=tmp_path / "runs")
    return units


def measure(units: list[Unit], chances: dict[str, list[float]]) -> None:
    for label, given in chances.items():
        for unit, chance in zip((unit for unit in units if unit.label == label), given, strict=False):
            finish(unit, chance)


CHANCES = {"plain": [0.2, 0.3, 0.9], "with a penalty": [0.6, 0.7, 0.5], "sequences": [0.4]}


def test_the_scores_are_the_accuracies_of_each_run(study: Study, units: list[Unit]) -> None:
    measure(units, CHANCES)
    (group,) = study_groups(study, units)
    assert [row.label for row in group.rows] == ["plain", "with a penalty"]  # one run of `sequences`, the base has none
    assert group.baseline is group.rows[0]
    for row in group.rows:
        runs = [unit.run.right_answers("add3") for unit in units if unit.label == row.label]
        accuracies = [sum(run.right) / 240 for run in runs if run is not None]
        np.testing.assert_allclose(group.scores[row.key], np.array(accuracies)[:, None])


def test_the_table_has_a_block_of_runs_when_asked(study: Study, units: list[Unit]) -> None:
    """Runs of `with a penalty` are above two of three of the baseline's."""
    measure(units, CHANCES)
    plain = study_table(study, "laptop", units)
    table = with_profiles(plain, study, units)
    assert table.blocks[:-1] == plain.blocks
    block = table.blocks[-1]
    assert [column.title for column in block.columns] == ["Runs", "P(> plain)", "> 25%", "> 50%", "> 75%"]
    baseline, penalty = ([cell.text for cell in row.cells] for row in block.rows)
    assert baseline[:2] == ["3", ""]
    assert penalty[:2] == ["3", "67 [0, 100]"]
    assert [text.split()[0] for text in baseline[2:]] == ["67", "33", "33"]
    assert "decides nothing" in table.notes[-1]


def test_the_figure_has_a_line_a_row_and_the_probability_of_each_other(study: Study, units: list[Unit]) -> None:
    measure(units, CHANCES)
    (drawn,) = draw_study(study, "laptop", units)
    assert drawn.name == "mine-profiles"
    profiles, improvements = drawn.figure.axes
    assert [line.get_label() for line in profiles.lines] == ["plain", "with a penalty"]
    at, share = map(np.asarray, profiles.lines[0].get_data())
    assert share[at == 50] == pytest.approx(100 / 3)
    assert [text.get_text() for text in improvements.get_yticklabels()] == ["with a penalty"]
    assert any(line.get_xdata()[0] == pytest.approx(200 / 3) for line in improvements.lines if line.get_marker() == "o")
    assert "above one of plain" in svg(drawn.figure)


def test_one_run_a_row_is_no_group(study: Study, units: list[Unit]) -> None:
    measure(units, {"plain": [0.2], "with a penalty": [0.6]})
    assert study_groups(study, units) == []
    table = study_table(study, "laptop", units)
    noted = with_profiles(table, study, units)
    assert noted.blocks == table.blocks
    assert noted.notes[-1].startswith("No profiles")
