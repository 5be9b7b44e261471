"""Files of studies, scales and papers, as a user adds them."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.studies.fetch_inputs import fetch_inputs
from tepo.studies.plan import Unit, make_plan
from tepo.studies.plan_studies import plan_all
from tepo.studies.study import load_study, parse_study, printed, scale_studies
from tests.support.runs import write

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/studies.md").read_text()
SCALES = "scales:\n  laptop: {models: [laptop], seeds: [0]}\n"
ROW = "title: x\nrows:\n  - {label: a, objective: tepo%s}\n" + SCALES
SCALE = "title: x\nrows:\n  - {label: a, objective: tepo}\nscales:\n  laptop: %s\n"


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        (f"title: x\n{SCALES}", "either `rows:` or `panels:`", 1),
        (ROW % ", overrides: [train.stepz=1]", "unknown configuration key 'train.stepz'", 3),
        (ROW % ", overrides: [seed=3]", "seed cannot be an override", 3),
        (SCALE % "{models: [laptop], seeds: [0, 0]}", "listed twice", 5),
        (ROW % "" + "figures:\n  - {name: f, rows: [b]}\n", "unknown row 'b'", 7),
    ],
)
def test_a_mistake_names_file_line_and_key(text: str, what: str, line: int, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        parse_study(write(tmp_path / "mine.yaml", text))
    assert what in caught.value.what
    assert f"mine.yaml:{line}" in caught.value.where


@pytest.mark.parametrize(
    "given", [{"overrides": ["seed=3"]}, {"overrides": ["scale=paper"]}, {"seeds": [0, 0]}, {"seeds": [-1]}], ids=str
)
def test_what_a_study_sets_itself_and_seeds_that_are_none_are_refused(given: dict, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        make_plan(load_study("panel-e"), "laptop", store=tmp_path, **given)


# scales ---------------------------------------------------------------------------------------------------------------
DESK = GUIDE.partition("## A scale of your own")[2].partition("```yaml\n")[2].partition("```")[0]
OWN = """
title: T
rows:
  - {label: TEPO, objective: tepo, laptop: [train.epochs=1]}
  - {label: "TEPO, β = 0.1", objective: tepo, overrides: [objective.beta=0.1]}
scales:
  laptop: {models: [laptop], seeds: [3], overrides: [train.steps=2]}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    write(tmp_path / "experiments/mine.yaml", OWN)
    write(tmp_path / "scale/desk.yaml", DESK)
    return tmp_path


def test_the_scale_of_the_documents_takes_a_study_that_does_not_name_it(own: Path) -> None:
    config = compose(["scale=desk"]).train
    assert (config.steps, config.prompts_per_step, config.epochs) == (12, 32, 2)
    assert len(make_plan(load_study("table1"), "desk", store=own)) == 8
    write(own / "scale/desk.yaml", DESK.replace("beta=1]", "beta=2]"))
    first, second = make_plan(load_study("mine"), "desk", store=own)
    assert (first.config.train.prompts_per_step, first.config.train.steps, first.seed) == (32, 2, 3)
    assert [unit.config.train.epochs for unit in (first, second)] == [1, 2]
    coefficients = [unit.config.objective["constants"]["beta"] for unit in (first, second)]
    assert coefficients == [2, 0.1], "a change is read, and the row's own comes after"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("stand_ins: {laptop: laptop}", "", "no model in place of laptop.*stand_ins: {laptop: laptop}"),
        ("  one_core", "  models: [laptop]\n  one_core", "unknown key 'studies.models'"),
        ("# @package _global_\n", "", "keys below `scale`"),
    ],
)
def test_mistakes_in_a_scale_are_said(own: Path, old: str, new: str, message: str) -> None:
    write(own / "scale/desk.yaml", DESK.replace(old, new))
    with pytest.raises(UserError, match="(?s)" + message):
        make_plan(parse_study(own / "experiments/mine.yaml"), "desk", store=own)


def test_a_model_that_stands_in_is_compared_with_the_same_figures() -> None:
    study = load_study("table2")
    row = next(row for row in study.rows if row.objective == "tepo")
    for model in study.scale("paper").models:
        figures = printed(study, model, row)
        assert figures.model == study.models[model]  # each model its own figures
        assert printed(study, scale_studies("single_gpu").stand_ins[model], row) == figures


# papers ---------------------------------------------------------------------------------------------------------------
PAPER = GUIDE.partition("## A paper: two files")[2]
STUDY, FIGURES = PAPER.partition("```yaml\n")[2].partition("```")[0], PAPER.partition("\n```\n#")[2].partition("```")[0]


def test_the_paper_of_the_documents_is_a_study_at_all_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Added as a stranger adds it. A row that is printed for other models alone has no figures."""
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    folder = tmp_path / "experiments/papers/my_paper"
    write(folder / "study.yaml", STUDY)
    write(folder / "printed.csv", f"#{FIGURES}naive_grpo,Qwen2.5-7B,Naive GRPO,20\n")
    study = load_study("my-paper")
    runs = {scale: len(make_plan(study, scale, store=tmp_path)) for scale in ("laptop", "single_gpu", "paper")}
    assert runs == {"laptop": 6, "single_gpu": 2, "paper": 2}
    figures = [printed(study, model, row) for model in ("laptop", "qwen2.5-32b") for row in study.rows]
    assert [row.average for row in figures if row] == [30, 50, 30, 50]
    text = STUDY.replace("[qwen2.5-32b]", "[qwen2.5-7b, qwen2.5-32b]")
    text = text.replace("models: {", "models: {qwen2.5-7b: Qwen2.5-7B, ")
    study = parse_study(write(folder / "study.yaml", text))
    naive, dapo = (printed(study, "qwen2.5-7b", row) for row in study.rows)
    assert (naive.average, dapo) == (20, None)
    with pytest.raises(UserError, match="dynamic_sampilng"):
        parse_study(write(folder / "study.yaml", text.replace("dynamic_sampling", "dynamic_sampilng")))


def units(scale: str, *overrides: str) -> list[Unit]:
    return plan_all(["panel_e"], scale, store=Path("nowhere"), overrides=overrides)[0][1]


def test_a_silent_hub_ends_it_before_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEPO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    said: list[str] = []
    with pytest.raises(UserError, match=r"^nothing is fetched: http://127.0.0.1:9 does not answer") as ended:
        fetch_inputs(units("paper"), said.append)
    assert (ended.value.exit_code, said, list(tmp_path.iterdir())) == (2, [], [])


def test_what_ships_or_is_generated_asks_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    path, said = write(tmp_path / "own.jsonl", '{"id": "one", "problem": "1+1=", "answer": "2"}\n'), list[str]()
    fetch_inputs(units("laptop"), said.append)
    (line,) = said
    assert line.startswith("package:laptop: there already, ")
    fetch_inputs(units("laptop", f"data={path}", "data.benchmarks=[add3]"), said.append)
    assert said[-1] == f"{path}: 1 problem"
