import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from tepo.analysis.page import head_of, ranges, render_all
from tepo.analysis.tables import fill_command
from tepo.common.files import write_json
from tepo.config.compose import compose
from tepo.reporting.page import PageContent, PageHead
from tepo.store.run_id import run_id
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import Planned, plan_studies
from tepo.studies.planned_facts import read_facts
from tepo.studies.study import Study, parse_study
from tests.unit.studies.measured import finish, table_from_store

OWN = """
title: Two steps
baseline: plain
notes: [Trained on a train., "A second sentence: with a colon."]
rows:
  - {label: plain, objective: grpo_dapo}
  - {label: "{steps} with a penalty", objective: tepo, laptop: [objective.beta=1]}
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


def rendered(plan: Planned) -> PageContent:
    return render_all(plan, read_facts(plan)[1])


def head(plan: Planned) -> PageHead:
    return head_of(plan, read_facts(plan)[1])


def test_what_was_run_is_a_sentence(study: Study, tmp_path: Path) -> None:
    def ran(**given: Sequence) -> str:
        return head(planned(study, tmp_path / "runs", overrides=["train.steps=2"], **given)).ran

    finish(planned(study, tmp_path / "runs", overrides=["train.steps=2"])[0][1][0], 0.5)
    assert ran() == (
        "A language model of 0.2M parameters, trained by RL on procedural arithmetic for 2 steps with seeds 3 to 5: "
        "1 of 6 runs measured, each on 1 benchmark of 200 problems with 4 responses each."
    )
    assert "with seed 3: 1 of 2 runs measured" in ran(seeds=[3])
    assert "with 5 seeds: " in ran(seeds=[3, 5, 7, 9, 11])
    more = planned(study, tmp_path / "runs", overrides=["data.benchmarks=[add3,max4]"], seeds=[9])
    said = head([*planned(study, tmp_path / "runs"), *more]).ran
    assert "each on 1 to 2 benchmarks of 200 problems" in said


def test_what_such_results_cannot_say_is_said_with_the_numbers_of_these_runs(study: Study, tmp_path: Path) -> None:
    plan = planned(study, tmp_path / "runs", overrides=["train.steps=12", "train.max_new_tokens=40"])
    assert head(plan).caveat == head(plan).cost == "", "nothing was run"
    for unit in plan[0][1][:2]:
        finish(unit, 0.5, **{"response_length/mean": 21.4 + unit.seed})
        cost = {"data": "laptop", "objective": "tepo", "steps": 12, "benchmarks": 1, "cpu_s": 5400.0}
        write_json(unit.folder / "cost.json", [{**cost, "training_s": 1.0, "measuring_s": 1.0, "tokens": 1}])
    said = head(plan)
    assert "(responses have at most 40 tokens, 25 on average)" in said.caveat
    assert "or of where training ends: 12 steps stop before it." in said.caveat
    assert said.cost == "Training and measuring took 3.0 CPU hours."


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
    command = shlex.split(fill_command(study, units))
    assert command == ["tepo", "ablate", "mine", "--scale", "laptop", *words]


def test_the_command_names_another_store(study: Study, tmp_path: Path) -> None:
    _, units = planned(study, tmp_path / "my runs")[0]
    assert shlex.split(fill_command(study, units))[-2:] == ["--store", str(tmp_path / "my runs")]


def test_the_command_of_a_run_trains_it(study: Study, tmp_path: Path) -> None:
    _, units = planned(study, tmp_path, overrides=["train.steps=2"])[0]
    for unit in units:
        finish(unit, 0.5)
    for run, unit in zip(rendered([(study, units)]).runs, units, strict=True):
        tepo, train, *words = shlex.split(run.command)
        assert (tepo, train) == ("tepo", "train")
        assert run_id(compose(words)) == unit.id


def test_only_a_table_that_lacks_something_shows_a_command(study: Study, tmp_path: Path) -> None:
    _, units = planned(study, tmp_path, overrides=["train.steps=2"])[0]
    assert table_from_store(study, units).command == fill_command(study, units)
    for unit in units:
        finish(unit, 0.5)
    assert table_from_store(study, units).command == ""
