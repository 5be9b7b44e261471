from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.studies.plan import make_plan
from tepo.studies.study import load_study, parse_study, printed, scale_studies
from tests.support.runs import write

LAPTOP = (Path(__file__).parents[3] / "tepo/config/scale/laptop.yaml").read_text().partition("studies:")[0]
STUDY = """
title: T
rows:
  - {label: TEPO, objective: tepo, laptop: [train.epochs=1]}
  - {label: "TEPO, β = 0.1", objective: tepo, overrides: [objective.beta=0.1]}
scales:
  laptop: {models: [laptop], seeds: [3], overrides: [train.steps=2]}
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("scale", "experiments"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    (tmp_path / "experiments/mine.yaml").write_text(STUDY)
    declare(tmp_path, "like: laptop, stand_ins: {laptop: laptop}, objectives: {tepo: [objective.beta=2]}")
    return tmp_path


def declare(folder: Path, studies: str) -> None:
    text = LAPTOP.replace("scale: laptop", "scale: desk").replace("prompts_per_step: 64", "prompts_per_step: 32")
    (folder / "scale/desk.yaml").write_text(f"{text}studies: {{{studies}}}\n")


def test_a_study_is_taken_at_a_scale_that_it_does_not_name(study: Path) -> None:
    units = make_plan(load_study("mine"), "desk", store=study)
    trained = [(unit.config.train, unit.config.objective["constants"]["beta"], unit.seed) for unit in units]
    assert [(train.prompts_per_step, train.steps, train.epochs) for train, _, _ in trained] == [(32, 2, 1), (32, 2, 2)]
    assert [(coefficient, seed) for _, coefficient, seed in trained] == [(2, 3), (0.1, 3)]  # the row's own wins


def test_what_a_scale_says_is_read_anew_when_it_changes(study: Path) -> None:
    assert scale_studies("desk").like == "laptop"
    declare(study, "like: paper")
    assert scale_studies("desk").like == "paper"


@pytest.mark.parametrize(
    ("studies", "message"),
    [
        ("", "does not say which scale it is like, and mine is written for laptop.*desk.yaml.*like: laptop"),
        ("like: paper", "desk is like paper, and mine is written for laptop"),
        ("like: laptop", "no model in place of laptop, which mine trains at scale laptop.*stand_ins: {laptop: laptop}"),
        ("like: laptop, stand_ins: {laptop: lptop}", "did you mean 'laptop'"),
        ("like: laptop, models: [laptop]", "unknown key 'studies.models'"),
    ],
)
def test_mistakes_in_a_scale_are_said(study: Path, studies: str, message: str) -> None:
    declare(study, studies)
    with pytest.raises(UserError, match="(?s)" + message):
        make_plan(parse_study(study / "experiments/mine.yaml"), "desk", store=study)


def test_the_file_of_the_documents_is_a_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs/studies.md").read_text()
    text = page.partition("## A scale of your own")[2].partition("```yaml\n")[2].partition("```")[0]
    write(tmp_path / "scale/desk.yaml", text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEPO_PATH", ".")
    config = compose(["scale=desk"])
    assert (config.train.steps, config.train.prompts_per_step, config.train.epochs) == (12, 32, 2)
    assert len(make_plan(load_study("table1"), "desk", store=tmp_path)) == 8
    write(tmp_path / "scale/desk.yaml", text.partition("\n")[2])
    with pytest.raises(UserError, match="keys below `scale`") as caught:
        compose(["scale=desk"])
    assert str(caught.value.fix) == "`# @package _global_` as its first line"


def test_a_model_that_stands_in_is_compared_with_the_same_figures() -> None:
    study = load_study("table2")
    row = next(row for row in study.rows if row.objective == "tepo")
    pairs = scale_studies("single_gpu").stand_ins
    for there in study.scale("paper").models:
        own, stand_in = printed(study, there, row), printed(study, pairs[there], row)
        assert own.model == study.models[there]  # each model its own figures
        assert stand_in == own
