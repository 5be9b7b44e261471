import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from tepo.analysis.charts import own_rows
from tepo.analysis.page import page, render_all
from tepo.analysis.page_head import head_of, ranges
from tepo.analysis.tables import fill_command
from tepo.common.files import write_json
from tepo.config.compose import compose
from tepo.reporting.charts.style import specification
from tepo.reporting.page import PageContent, PageHead
from tepo.store.run_id import run_id
from tepo.studies.plan import Unit, unique
from tepo.studies.plan_studies import Planned, plan_all, plan_studies
from tepo.studies.planned_facts import read_facts
from tepo.studies.study import Study, parse_study
from tests.support.results import finish, measure, table_from_store

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
        write_json(unit.folder.path / "cost.json", [{**cost, "training_s": 1.0, "measuring_s": 1.0, "tokens": 1}])
    said = head(plan)
    assert "(responses have at most 40 tokens, 25 on average)" in said.caveat
    assert "or about where training would end: it stops after 12 steps." in said.caveat
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


HALF = """
about: GRPO/DAPO in which responses below the mean of their group count half.
like: grpo_dapo
formula: {Z: (R - mean_g(R)) / (std_g(R) + eps), A: "where(Z < 0, Z/2, Z)"}
"""
FIRST = """
title: My first table
baseline: GRPO/DAPO
author: A. Reader
rows:
  - {label: before RL, base: true}
  - {label: GRPO/DAPO, objective: grpo_dapo}
  - {label: Dr. GRPO, objective: dr_grpo}
scales: {laptop: {models: [laptop], seeds: [0, 1, 2], overrides: [train.steps=2, "data.benchmarks=[add3]"]}}
"""
MINE = FIRST.replace("My first table", "Half of it").replace("Dr. GRPO, objective: dr_grpo", "Half, objective: half")
MINE = MINE.replace("  - {label: before RL, base: true}\n", "").replace("author: A. Reader\n", "")
CHANGED = MINE.replace("objective: half", "objective: grpo_dapo, overrides: [objective.high=0.2]")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of TEPO_PATH with a method of one's own, and two studies that share rows."""
    for name, text in (("objective/half", HALF), ("experiments/first", FIRST), ("experiments/mine", MINE)):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return tmp_path


def both(folder: Path, half: float = 0.9) -> PageContent:
    """The page of two studies whose rows are measured."""
    plan = plan_all(["first", "mine"], "laptop", store=folder / "runs")
    chances = {"before RL": 0.2, "GRPO/DAPO": 0.5, "Dr. GRPO": 0.51, "Half": half}
    for unit in unique(unit for _, units in plan for unit in units):
        if unit.row.base:
            measure(unit, 0.2)
        else:
            finish(unit, chances[unit.row_label], **{"critic/score/mean": chances[unit.row_label]})
    return rendered(plan)


def shown_methods(content: PageContent, chart: int) -> list[str]:
    """Methods in a picture, in their order."""
    rows = next(iter(specification(content.pictures[chart].chart)["datasets"].values()))
    return list(dict.fromkeys(row["method"] for row in rows))


@pytest.mark.parametrize(
    ("half", "finding"),
    [
        (0.9, "Half scores above GRPO/DAPO; Dr. GRPO cannot be told apart from it"),
        (0.1, "Half scores below GRPO/DAPO; Dr. GRPO cannot be told apart from it"),
        (0.52, "Half cannot be told apart from GRPO/DAPO, nor can Dr. GRPO"),
    ],
)
def test_a_page_is_about_all_of_its_studies_and_ones_own_row_comes_first(
    half: float, finding: str, shared: Path
) -> None:
    content = both(shared, half)
    assert content.finding == finding
    assert content.head.title == "Half of it; My first table"
    assert content.head.made == "laptop scale, run on 2026-01-02, by A. Reader"
    question = "Do Half and Dr. GRPO answer more problems right than GRPO/DAPO after the same training?"
    assert content.head.asked == question
    assert [chart.kind for chart in content.pictures] == ["differences", "curves"]
    assert shown_methods(content, 0) == ["Half", "Dr. GRPO"], "and not the untrained base"
    assert set(shown_methods(content, 1)) == {"Half", "GRPO/DAPO", "Dr. GRPO"}
    assert [method["label"] for method in content.methods] == ["Half", "GRPO/DAPO", "Dr. GRPO"]
    assert [run.label for run in content.samples[:2]] == ["GRPO/DAPO, seed 0", "Half, seed 0"], "side by side"
    assert [study.table.name for study in content.studies] == ["mine", "first"]
    assert not [chart for study in content.studies for chart in study.charts if chart.kind == "differences"]
    assert ("Training problems laptop: generated by tepo", "") in content.head.sources
    text = page(content)
    assert text.index(finding) < text.index('id="methods"') < text.index('id="study-mine"')
    folds = re.findall(r'<details class="fold result" id="[\w-]+"([^>]*)>', text)
    assert folds == [" open"] * 2


def test_curves_say_what_the_reward_is_and_have_their_ends_without_scripts(shared: Path) -> None:
    (shared / "brief.py").write_text("def reward(problem, response):\n    return len(response) < 30\n")
    for words, unit in (((), "% right"), ((f"data.reward={shared / 'brief.py'}",), "mean, %")):
        plan = plan_all(["mine"], "laptop", store=shared / "runs", overrides=words)
        for run in plan[0][1]:
            finish(run, 0.5, **{"critic/score/mean": 0.25})
        content = rendered(plan)
        (chart,) = [chart for study in content.studies for chart in study.charts if chart.kind == "curves"]
        assert chart.ends.to_dict("list") == {"Method": ["GRPO/DAPO", "Half"], f"Reward, {unit}": ["25", "25"]}
        assert unit in str(specification(content.pictures[1].chart))
        assert content.pictures[1].ends.equals(chart.ends)


def test_a_shipped_method_that_ones_study_changes_is_ones_own(shared: Path) -> None:
    (shared / "experiments/mine.yaml").write_text(CHANGED)
    plan = plan_all(["first", "mine", "stability"], "laptop", store=shared / "runs")
    assert set(own_rows(plan).values()) == {"Half"}


def test_of_many_rows_the_first_screen_has_ones_own_and_the_largest(shared: Path) -> None:
    more = "".join(f"  - {{label: r{n}, objective: dr_grpo, overrides: [train.epochs={n}]}}\n" for n in range(2, 20))
    (shared / "experiments/first.yaml").write_text(FIRST.replace("scales:", f"{more}scales:"))
    plan = plan_all(["first", "mine"], "laptop", store=shared / "runs")
    for unit in unique(unit for _, units in plan for unit in units):
        if unit.row.base:
            measure(unit, 0.2)
        else:
            finish(unit, 0.95 if unit.row_label == "r19" else 0.5, **{"critic/score/mean": 0.5})
    content = rendered(plan)
    first, second, *_ = shown_methods(content, 0)
    assert (first, second) == ("Half", "r19")
    assert "12 of 20" in content.pictures[0].caption
    assert shown_methods(content, 1) == ["GRPO/DAPO", "Half"], "curves of the first study, where all are too many"
    assert [chart.name for study in content.studies for chart in study.charts if chart.kind == "differences"]
    assert content.finding == "Half cannot be told apart from GRPO/DAPO, nor can any of 19 others"
