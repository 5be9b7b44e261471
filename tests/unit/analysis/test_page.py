import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from tepo.analysis.page import page, render_all
from tepo.analysis.page_head import ranges
from tepo.analysis.tables import fill_command
from tepo.config.compose import compose
from tepo.reporting.charts.style import specification
from tepo.reporting.page import PageContent
from tepo.store.run_id import run_id
from tepo.studies.plan import Unit, unique
from tepo.studies.plan_studies import Planned, plan_all, plan_studies
from tepo.studies.planned_facts import read_facts
from tepo.studies.study import Study, parse_study
from tests.support.results import finish, measure

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


def test_numbers_in_a_row_are_a_range() -> None:
    assert ranges([7, 0, 1, 2, 4, 5, 5]) == "0 to 2, 4, 5, 7"
    assert ranges([]) == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [({}, []), ({"seeds": [3], "overrides": ["train.steps=2"]}, ["--seeds", "3", "--set", "train.steps=2"])],
)
def test_the_command_runs_what_was_planned(study: Study, given: dict, words: list[str]) -> None:
    _, units = planned(study, Path("runs"), **given)[0]
    command = shlex.split(fill_command(study, units))
    assert command == ["tepo", "ablate", "mine", "--scale", "laptop", *words]


def test_the_command_of_a_run_trains_it(study: Study, tmp_path: Path) -> None:
    _, units = planned(study, tmp_path, overrides=["train.steps=2"])[0]
    for unit in units:
        finish(unit, 0.5)
    for run, unit in zip(rendered([(study, units)]).runs, units, strict=True):
        tepo, train, *words = shlex.split(run.command)
        assert (tepo, train) == ("tepo", "train")
        assert run_id(compose(words)) == unit.id


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


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of TEPO_PATH with a method of one's own, and two studies that share rows."""
    for name, text in (("objective/half", HALF), ("experiments/first", FIRST), ("experiments/mine", MINE)):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return tmp_path


def both(folder: Path) -> PageContent:
    """The page of two studies whose rows are measured."""
    plan = plan_all(["first", "mine"], "laptop", store=folder / "runs")
    chances = {"before RL": 0.2, "GRPO/DAPO": 0.5, "Dr. GRPO": 0.51, "Half": 0.9}
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


def test_a_page_is_about_all_of_its_studies_and_ones_own_row_comes_first(shared: Path) -> None:
    content = both(shared)
    assert content.finding == "Half scores above GRPO/DAPO; Dr. GRPO cannot be told apart from it"
    assert [chart.kind for chart in content.pictures] == ["differences", "curves"]
    assert shown_methods(content, 0) == ["Half", "Dr. GRPO"], "and not the untrained base"
    assert set(shown_methods(content, 1)) == {"Half", "GRPO/DAPO", "Dr. GRPO"}
    assert "% right" in str(specification(content.pictures[1].chart)), "the grader's verdict was rewarded"
    assert [method["unlike"] for method in content.methods] == ["GRPO/DAPO", "", "GRPO/DAPO"]
    assert list(content.terms)[-3:] == ["Points", "Line", "p"]
    assert [run.label for run in content.samples[:2]] == ["GRPO/DAPO, seed 0", "Half, seed 0"], "side by side"
    assert [study.table.name for study in content.studies] == ["mine", "first"]
    assert content.finding in page(content)
