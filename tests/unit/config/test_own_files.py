import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.paths import PACKAGE
from tepo.config.compose import compose
from tepo.jobs.model_card import command_of
from tepo.objectives import load_objective
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import run_id
from tepo.studies.study import load_study
from tepo.training.rollout.prompt_stream import PromptStream
from tests.support.runs import write

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


@pytest.mark.parametrize(
    ("value", "name", "path", "prompt"),
    [
        ("./tiny/", "tiny", "./tiny/", "boxed"),
        (SHIPPED, "laptop", SHIPPED, "boxed"),
        ("some-one/Model-0.5B", "Model-0.5B", "some-one/Model-0.5B", "boxed"),
        ("package:laptop_sparse", "laptop_sparse", "package:laptop_sparse", "raw"),
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
        ("data=sums.jsonl data.problems=other.jsonl", "name two"),
        ("model=tinny", "unknown model option 'tinny'"),
    ],
)
def test_words_that_contradict_each_other_or_name_nothing(here: Path, words: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose(words.split())


@pytest.mark.parametrize(("word", "message"), [("data=gone.jsonl", "no such file"), ("model=./gone", "no model there")])
def test_what_is_not_there_is_said_when_its_run_is_named(here: Path, word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_id(compose([word]))


OBJECTIVE = """about: "Mine: a narrow clip."
like: grpo_dapo
constants:
  low: {value: 0.1, source: a choice of this test}
  high: {value: 0.1, source: a choice of this test}
"""
STUDY = """
title: mine
baseline: mine
rows:
  - {label: mine, objective: mine}
  - {label: TEPO, objective: tepo, laptop: [train.epochs=1]}
scales:
  brief: {models: [small], seeds: [0]}
  laptop: {models: [small], seeds: [0]}
"""
OUTSIDE = "reads what lies outside the configuration"
SECRET = "hf_secret_of_this_test"
FILES = {
    "objective/mine.yaml": OBJECTIVE,
    "model/small.yaml": "{name: small, path: 'package:laptop'}",
    "data/sums.yaml": "name: sums\nbase: package:laptop\nprompt: raw\ntasks: {add3: 1}\nbenchmarks: [add3]\n",
    "experiments/ours.yaml": STUDY,
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with a scale of two steps, and a secret in the environment."""
    folder = tmp_path / "my folder"
    for name, text in FILES.items():
        write(folder / name, text)
    brief = (paths.CONFIG / "scale" / "laptop.yaml").read_text().replace("scale: laptop", "scale: brief")
    write(folder / "scale" / "brief.yaml", brief.replace("steps: 36", "steps: 2"))
    monkeypatch.setenv("TEPO_PATH", str(folder))
    monkeypatch.setenv("HF_TOKEN", SECRET)
    return folder


def test_each_group_has_the_options_of_the_folder(own: Path) -> None:
    config = compose(["objective=mine", "model=small", "data=sums", "scale=brief"])
    assert load_objective(config.objective).clip.bounds == pytest.approx({"low": 0.1, "high": 0.1})
    assert (config.model.name, config.data.name, config.data.tasks) == ("small", "sums", {"add3": 1})
    assert (config.scale, config.train.steps) == ("brief", 2)


def test_a_file_there_wins(own: Path) -> None:
    shipped = run_id(compose(["objective=gspo"]))
    (own / "objective" / "gspo.yaml").write_text(OBJECTIVE)
    config = compose(["objective=gspo"])
    assert config.objective["constants"]["high"] == 0.1
    assert run_id(config) != shipped


@pytest.mark.parametrize(
    "word",
    ["model.name=${oc.env:HF_TOKEN}", "model.name=${${data.name}:HF_TOKEN}", "data.benchmarks=[${oc.env:HF_TOKEN}]"],
)
def test_an_override_reads_nothing_outside(word: str, own: Path) -> None:
    with pytest.raises(UserError, match=OUTSIDE) as mistake:
        compose([word])
    assert mistake.value.where == word
    assert SECRET not in str(mistake.value)


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("model/small.yaml", "name: small", "name: '${oc.env:HF_TOKEN}'", f"{OUTSIDE}.*small.yaml:1 "),
        ("data/sums.yaml", "name: sums", "defaults: ['${oc.env:HF_TOKEN}']\nname: sums", f"{OUTSIDE}.*sums.yaml:1 "),
        ("objective/mine.yaml", "value: 0.1", "value: '${oc.env:HF_TOKEN}'", r"\$\{oc\.env:HF_TOKEN\}"),
        ("experiments/ours.yaml", "train.epochs=1", "'model.name=${oc.env:HF_TOKEN}'", f"{OUTSIDE}.*ours.yaml:6 "),
    ],
)
def test_a_file_reads_nothing_outside(file: str, old: str, new: str, said: str, own: Path) -> None:
    write(own / file, (own / file).read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=f"(?s){said}") as mistake:
        load_study("ours") if "experiments" in file else compose(["data=sums", "objective=mine", "model=small"])
    assert SECRET not in str(mistake.value)


def test_a_stored_configuration_is_text(own: Path) -> None:
    """Neither its objective nor the command of its card is resolved."""
    config = compose(["objective=mine"])
    config.model.name = config.tracking.project = "${oc.env:HF_TOKEN}"
    assert SECRET not in command_of(config, RunFolder.of(config))
    objective = load_objective({**config.objective, "name": "${oc.env:HF_TOKEN}"})
    assert objective.name == "${oc.env:HF_TOKEN}"
