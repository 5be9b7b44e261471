"""What the page says of a study: title and notes from its file, what ran, and the command for what it lacks."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tepo.analysis.page import head_of, page, ranges, render_all
from tepo.analysis.tables import fill_command, study_table
from tepo.common.files import write_json
from tepo.config.compose import compose
from tepo.store.run_id import run_id
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_studies
from tepo.studies.study import Study, load_study, parse_study
from tests.unit.studies.measured import finish

OWN = """
title: Two steps
baseline: plain
notes: [Trained on a train., "A second sentence: with a colon."]
rows:
  - {label: plain, objective: grpo_dapo}
  - {label: with a penalty, objective: tepo, laptop: [objective.beta=1]}
scales:
  laptop: {models: [laptop], seeds: [3, 4, 5], overrides: ["data.benchmarks=[add3]"]}
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    path = tmp_path / "mine.yaml"
    path.write_text(OWN)
    return parse_study(path)


def planned(study: Study, store: Path, **given: Sequence) -> list[tuple[Study, list[Unit]]]:
    return plan_studies([study], "laptop", store=store, **given)


def test_title_notes_and_facts_of_an_own_study(study: Study, tmp_path: Path) -> None:
    plan = planned(study, tmp_path / "runs", overrides=["train.steps=2"])
    units = plan[0][1]
    for unit in units[:3]:
        finish(unit, 0.5)
    cost = {"data": "laptop", "objective": "tepo", "steps": 2, "benchmarks": 1, "cpu_s": 1800.0}
    write_json(units[0].folder / "cost.json", [{**cost, "training_s": 1.0, "measuring_s": 1.0, "tokens": 1}])
    head = head_of(plan, "laptop")
    assert head.title == "Two steps, laptop scale"
    assert list(head.notes) == ["Trained on a train.", "A second sentence: with a colon."]
    assert head.facts == {
        "Scale": "laptop",
        "Model": "laptop",
        "Data": "laptop",
        "Runs": "3 of 6 measured",
        "Seeds": "3 to 5",
        "Steps": "2",
        "Ran": "2026-01-02",
        "Cost": "0.50 CPU hours",
    }


def test_what_was_run_is_a_sentence(study: Study, tmp_path: Path) -> None:
    def ran(**given: Sequence) -> str:
        return head_of(planned(study, tmp_path / "runs", overrides=["train.steps=2"], **given), "laptop").ran

    finish(planned(study, tmp_path / "runs", overrides=["train.steps=2"])[0][1][0], 0.5)
    assert ran() == (
        "A policy of 0.2M parameters, trained by RL on procedural arithmetic for 2 steps with seeds 3 to 5: 1 of 6 "
        "runs measured, each on 1 benchmark of 200 problems with 4 responses each."
    )
    assert "with seed 3: 1 of 2 runs measured" in ran(seeds=[3])
    assert "with 5 seeds: " in ran(seeds=[3, 5, 7, 9, 11])
    more = planned(study, tmp_path / "runs", overrides=["data.benchmarks=[add3,max4]"], seeds=[9])
    said = head_of([*planned(study, tmp_path / "runs"), *more], "laptop").ran
    assert "each on 1 to 2 benchmarks of 200 problems" in said


def test_the_finding_of_the_page_is_that_of_its_study(study: Study, tmp_path: Path) -> None:
    plan = planned(study, tmp_path / "runs", overrides=["train.steps=2"])
    for unit in plan[0][1]:
        finish(unit, 0.8 if unit.row.label == "plain" else 0.5)
    assert "<h1>with a penalty ends below plain</h1>" in page(render_all(plan, "laptop"))


def test_many_studies_have_a_title_for_all() -> None:
    papers = [(load_study(name), []) for name in ("table1", "table2", "table4")]
    assert head_of(papers, "laptop").title == "TEPO and GTPO / GRPO-S, laptop scale"
    mine = [(replace(study, name=f"mine{study.name}"), units) for study, units in papers]
    assert head_of(mine, "laptop").title == "3 studies, laptop scale"


def test_numbers_in_a_row_are_a_range() -> None:
    assert ranges([7, 0, 1, 2, 4, 5, 5]) == "0 to 2, 4, 5, 7"
    assert ranges([]) == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, []),
        ({"seeds": [3]}, ["--seeds", "3"]),
        ({"overrides": ["train.steps=2", "train.epochs=2"]}, ["--set", "train.steps=2", "--set", "train.epochs=2"]),
    ],
)
def test_the_command_runs_what_was_planned(study: Study, given: dict, words: list[str]) -> None:
    _, units = planned(study, Path("runs"), **given)[0]
    command = shlex.split(fill_command(study, "laptop", units))
    assert command == ["tepo", "ablate", "mine", "--scale", "laptop", *words]


def test_the_command_names_another_store(study: Study, tmp_path: Path) -> None:
    _, units = planned(study, tmp_path / "my runs")[0]
    assert shlex.split(fill_command(study, "laptop", units))[-2:] == ["--store", str(tmp_path / "my runs")]


def test_the_command_of_a_run_trains_it(study: Study, tmp_path: Path) -> None:
    _, units = planned(study, tmp_path, overrides=["train.steps=2"])[0]
    for unit in units:
        finish(unit, 0.5)
    for run, unit in zip(render_all([(study, units)], "laptop").runs, units, strict=True):
        tepo, train, *words = shlex.split(run.command)
        assert (tepo, train) == ("tepo", "train")
        assert run_id(compose(words)) == unit.id


def test_only_a_table_that_lacks_something_shows_a_command(study: Study, tmp_path: Path) -> None:
    _, units = planned(study, tmp_path, overrides=["train.steps=2"])[0]
    assert study_table(study, "laptop", units).command == fill_command(study, "laptop", units)
    for unit in units:
        finish(unit, 0.5)
    assert study_table(study, "laptop", units).command == ""
