import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tepo.common.errors import UserError
from tepo.common.paths import PACKAGE
from tepo.config.compose import GROUPS, compose, options
from tepo.store.run_id import run_id
from tepo.studies.plan_studies import plan_all
from tepo.studies.study import load_study
from tepo.training.rollout.prompt_stream import PromptStream

SHIPPED = str(PACKAGE / "assets/laptop")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"id": number, "problem": f"{number}+{number}=", "answer": 2 * number} for number in range(10, 30)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tiny").symlink_to(SHIPPED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["data=sums.jsonl"],
        ["data.problems=sums.jsonl"],
        ["data.kind=problems", "data.problems=./sums.jsonl"],
        ["data=laptop", "data=sums.jsonl"],
    ],
)
def test_a_file_of_problems_is_what_is_trained_on(here: Path, words: list[str]) -> None:
    config = compose(words)
    assert (config.data.kind, config.data.name, config.data.tasks) == ("problems", "sums", {})
    first, second, *_ = PromptStream(config, AutoTokenizer.from_pretrained(SHIPPED)).items
    assert (first[0].prompt, second[0].prompt) == ("10+10=", "11+11=")
    assert config.data.benchmarks == []  # the shipped ones say nothing about it
    assert (config.train.max_prompt_tokens, config.train.max_new_tokens) == (256, 128)
    assert config.data.overlong_prompts == "error"
    assert run_id(config) == run_id(compose(["data=sums.jsonl"])) != run_id(compose())


def test_what_the_words_say_wins_over_what_follows_from_the_file(here: Path) -> None:
    words = ("data.name=mine", "train.max_new_tokens=9", "data.overlong_prompts=drop", "data.benchmarks=[add3]")
    config = compose([*words, "data=sums.jsonl"])
    assert (config.data.name, config.train.max_new_tokens) == ("mine", 9)
    assert (config.data.overlong_prompts, config.data.benchmarks) == ("drop", ["add3"])
    kept = compose(["data=laptop", "data.kind=problems", "data.problems=sums.jsonl"])
    assert (kept.data.kind, len(kept.data.benchmarks), kept.train.max_prompt_tokens) == ("problems", 7, 64)
    paper = compose(["scale=paper", "data.problems=sums.jsonl"])
    assert (paper.data.name, len(paper.data.benchmarks), paper.train.max_prompt_tokens) == ("sums", 7, 2048)


@pytest.mark.parametrize(
    ("value", "name", "path", "prompt"),
    [
        ("tiny", "tiny", "tiny", "boxed"),
        ("./tiny/", "tiny", "./tiny/", "boxed"),
        (SHIPPED, "laptop", SHIPPED, "boxed"),
        ("some-one/Model-0.5B", "Model-0.5B", "some-one/Model-0.5B", "boxed"),
        ("package:laptop_sparse", "laptop_sparse", "package:laptop_sparse", "raw"),
        ("laptop", "laptop", "package:laptop", "raw"),
    ],
)
def test_a_model_is_a_folder_a_hub_id_or_an_option(here: Path, value: str, name: str, path: str, prompt: str) -> None:
    config = compose([f"model={value}", "data=sums.jsonl"])
    assert (config.model.name, config.model.path, config.data.prompt) == (name, path, prompt)
    assert compose([f"model={value}"]).data.prompt == "raw"  # of generated arithmetic it always is


def test_a_model_by_its_path_alone_has_its_name_too(here: Path) -> None:
    assert compose(["model.path=some/thing"]).model.name == "thing"
    assert compose(["data.base=tiny"]).model.name == "tiny"
    assert compose(["model.path=some/thing", "model.name=mine"]).model.name == "mine"
    assert run_id(compose(["model=tiny"])) == run_id(compose(["model.path=./tiny"])) == run_id(compose())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data.kind=procedural data.problems=sums.jsonl", "data.kind=procedural generates them"),
        ("data=sums.jsonl data.kind=procedural", "data.kind=procedural generates them"),
        ("data=sums.jsonl data.tasks.add3=1", "data.tasks.add3 generates them"),
        ("data=dapo data.tasks.add3=1", "data.tasks.add3 generates them"),
        ("data=laptop data.problems=sums.jsonl", "data=laptop generates them"),
        ("data=sums.jsonl data.problems=other.jsonl", "name two"),
        ("model=tiny model.path=other", "name two"),
        ("model=qwen2.5-7b data.base=tiny", "another model was chosen"),
        ("data=smus", "unknown data option 'smus'"),
        ("data=_own", "unknown data option '_own'"),
        ("model=tinny", "unknown model option 'tinny'"),
        ("model=qwen3-14", "did you mean 'qwen3-14b'"),
    ],
)
def test_words_that_contradict_each_other_or_name_nothing(here: Path, words: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose(words.split())


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("data=gone.jsonl", "no such file"),
        ("model=./gone", "no model there"),
        ("data.problems=dapo", "did you mean 'dapo_math'"),
    ],
)
def test_what_is_not_there_is_said_when_its_run_is_named(here: Path, word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_id(compose([word]))


def test_own_places_are_no_options() -> None:
    assert not [name for group in GROUPS for name in options(group) if name.startswith("_")]


STUDY = "title: mine\nrows:\n  - {label: GRPO, objective: grpo}\nscales:\n  laptop: {models: [%s], seeds: [0]}\n"


def test_a_study_takes_them_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "experiments").mkdir()
    monkeypatch.setenv("TEPO_PATH", str(here))
    (here / "experiments" / "mine.yaml").write_text(STUDY % "./tiny")
    words = ["data=sums.jsonl", "data.benchmarks=[add3]"]
    ((_, (unit,)),) = plan_all(["mine"], "laptop", store=here / "runs", overrides=words)
    assert (unit.config.model.name, unit.config.data.name) == ("tiny", "sums")
    ((_, units),) = plan_all(["panel-e"], "laptop", store=here / "runs", overrides=[*words, "model=tiny"])
    assert {unit.config.model.name for unit in units} == {"tiny"}
    with pytest.raises(UserError, match="data=sums names no benchmarks"):
        plan_all(["mine"], "laptop", store=here / "runs", overrides=["data=sums.jsonl"])
    (here / "experiments" / "mine.yaml").write_text(STUDY % "tinny")
    with pytest.raises(UserError, match="unknown model 'tinny'"):
        load_study("mine")
