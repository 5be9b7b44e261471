import shlex
from pathlib import Path

import pytest

from tepo.analysis.page import page, render_all
from tepo.analysis.page_head import ranges
from tepo.analysis.tables import fill_command
from tepo.config.compose import compose
from tepo.reporting.charts.style import Chart, specification
from tepo.store.run_id import run_id
from tepo.studies.plan import unique
from tepo.studies.plan_studies import Planned, plan_all
from tepo.studies.planned_facts import read_facts
from tests.support.results import finish, measure
from tests.support.runs import write

HALF = """
about: GRPO/DAPO in which responses below the mean of their group count half.
like: grpo_dapo
formula: {Z: (R - mean_g(R)) / (std_g(R) + eps), A: "where(Z < 0, Z/2, Z)"}
"""
FIRST = """
title: My first table
baseline: GRPO/DAPO
rows:
  - {label: before RL, base: true}
  - {label: GRPO/DAPO, objective: grpo_dapo}
  - {label: "Dr. GRPO at {steps} steps", objective: dr_grpo, laptop: [train.epochs=1]}
scales: {laptop: {models: [laptop], seeds: [0, 1, 2], overrides: ["data.benchmarks=[add3]"]}}
"""
MINE = """
title: Half of it
baseline: GRPO/DAPO
rows:
  - {label: GRPO/DAPO, objective: grpo_dapo}
  - {label: Half, objective: half}
scales: {laptop: {models: [laptop], seeds: [0, 1, 2], overrides: ["data.benchmarks=[add3]"]}}
"""
SHORT = ["train.steps=2"]


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method of one's own, and two studies that share rows."""
    for name, text in (("objective/half", HALF), ("experiments/first", FIRST), ("experiments/mine", MINE)):
        write(tmp_path / f"{name}.yaml", text)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))


def measured(plan: Planned) -> Planned:
    chances = {"GRPO/DAPO": 0.5, "Half": 0.9}
    for unit in unique(unit for _, units in plan for unit in units):
        if unit.row.base:
            measure(unit, 0.2)
        else:
            chance = chances.get(unit.row_label, 0.51)
            finish(unit, chance, **{"critic/score/mean": chance})
    return plan


def test_numbers_in_a_row_are_a_range() -> None:
    assert ranges([7, 0, 1, 2, 4, 5, 5]) == "0 to 2, 4, 5, 7"
    assert ranges([]) == ""


@pytest.mark.parametrize(
    ("given", "words"), [({}, []), ({"seeds": [3], "overrides": SHORT}, ["--seeds", "3", "--set", "train.steps=2"])]
)
def test_the_command_runs_what_was_planned(given: dict, words: list[str]) -> None:
    ((study, units),) = plan_all(["first"], "laptop", store=Path("runs"), **given)
    command = shlex.split(fill_command(study, units))
    assert command == ["tepo", "ablate", "first", "--scale", "laptop", *words]


def test_the_command_of_a_run_trains_it(tmp_path: Path) -> None:
    plan = measured(plan_all(["first"], "laptop", store=tmp_path / "runs", overrides=SHORT))
    trained = [unit for unit in plan[0][1] if unit.trains]
    for run, unit in zip(render_all(plan, read_facts(plan)[1]).runs, trained, strict=True):
        tepo, train, *words = shlex.split(run.command)
        assert (tepo, train, run_id(compose(words))) == ("tepo", "train", unit.id)


def shown_methods(chart: Chart) -> list[str]:
    """In their order."""
    rows = next(iter(specification(chart)["datasets"].values()))
    return list(dict.fromkeys(row["method"] for row in rows))


def test_a_page_is_about_all_of_its_studies_and_ones_own_row_comes_first(tmp_path: Path) -> None:
    plan = measured(plan_all(["first", "mine"], "laptop", store=tmp_path / "runs", overrides=SHORT))
    content = render_all(plan, read_facts(plan)[1])
    doctor = "Dr. GRPO at 2 steps"
    assert content.finding == f"Half scores above GRPO/DAPO; {doctor} cannot be told apart from it"
    assert content.finding in page(content)
    differences, curves = content.pictures
    assert (differences.kind, curves.kind) == ("differences", "curves")
    assert shown_methods(differences.chart) == ["Half", doctor], "and not the untrained base"
    assert set(shown_methods(curves.chart)) == {"Half", "GRPO/DAPO", doctor}
    assert "% right" in str(specification(curves.chart)), "the grader's verdict was rewarded"
    assert [method["unlike"] for method in content.methods] == ["GRPO/DAPO", "", "GRPO/DAPO"]
    assert [run.label for run in content.samples[:2]] == ["GRPO/DAPO, seed 0", "Half, seed 0"], "side by side"
    assert [study.table.name for study in content.studies] == ["mine", "first"]
