"""Nothing of the environment gets into a configuration, and so into what is stored."""

from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.jobs.model_card import command_of
from tepo.objectives import load_objective
from tepo.store.run_folder import RunFolder
from tepo.studies.study import load_study
from tests.unit.config.test_own_groups import save_files

OUTSIDE = "reads what lies outside the configuration"
SECRET = "hf_secret_of_this_test"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, and a secret in the environment."""
    save_files(tmp_path)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", SECRET)
    return tmp_path


@pytest.mark.parametrize(
    "word",
    [
        "model.name=${oc.env:HF_TOKEN}",
        r"model.name=\${oc.env:HF_TOKEN}",
        "model.name=${oc.select:nothing,'${oc.env:HF_TOKEN}'}",
        "model.name=${${data.name}:HF_TOKEN}",
        "model.name=${hydra:runtime.cwd}",
        "data.benchmarks=[${oc.env:HF_TOKEN}]",
        "objective.J=${oc.env:HF_TOKEN}",
    ],
)
def test_an_override_reads_nothing_outside(word: str, own: Path) -> None:
    with pytest.raises(UserError, match=OUTSIDE) as mistake:
        compose([word])
    assert mistake.value.where == word
    assert SECRET not in str(mistake.value)


@pytest.mark.parametrize(
    ("file", "old", "new", "word", "line"),
    [
        ("model/small.yaml", "name: small", "name: '${oc.env:HF_TOKEN}'", "model=small", 1),
        ("scale/brief.yaml", "scale: brief", "scale: brief\nseed: '${oc.env:HF_TOKEN}'", "scale=brief", 4),
        ("data/sums.yaml", "name: sums", "defaults: ['${oc.env:HF_TOKEN}']\nname: sums", "data=sums", 1),
    ],
)
def test_a_file_reads_nothing_outside(file: str, old: str, new: str, word: str, line: int, own: Path) -> None:
    compose([word])
    text = (own / file).read_text()
    assert old in text
    (own / file).write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=OUTSIDE) as mistake:
        compose([word])
    assert f"{own / file}:{line} (" in str(mistake.value)
    assert SECRET not in str(mistake.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [("value: 0.1", "value: '${oc.env:HF_TOKEN}'"), ("grpo_dapo", "grpo_dapo\nformula: {J: '${oc.env:HF_TOKEN}'}")],
)
def test_an_objective_resolves_nothing(old: str, new: str, own: Path) -> None:
    path = own / "objective/mine.yaml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=r"\$\{oc\.env:HF_TOKEN\}") as mistake:
        compose(["objective=mine"])
    assert f"{path}:" in str(mistake.value)
    assert SECRET not in str(mistake.value)


def test_a_study_names_the_line(own: Path) -> None:
    path = own / "experiments/ours.yaml"
    path.write_text(path.read_text().replace("train.epochs=1", "'model.name=${oc.env:HF_TOKEN}'"))
    with pytest.raises(UserError, match=OUTSIDE) as mistake:
        load_study("ours")
    assert f"{path}:6 (rows[1].laptop[0])" in str(mistake.value)


def test_what_the_configuration_itself_holds_is_there(own: Path) -> None:
    config = compose(["scale=brief", "model.name=on ${data.name}", "data.max_new_tokens=31"])
    assert (config.model.name, config.train.max_new_tokens) == ("on laptop", 31)


def test_a_stored_configuration_is_text(own: Path) -> None:
    """Neither its objective nor the command of its card is resolved."""
    config = compose(["objective=mine"])
    config.model.name = config.tracking.project = "${oc.env:HF_TOKEN}"
    assert SECRET not in command_of(config, RunFolder.of(config))
    objective = load_objective({**config.objective, "name": "${oc.env:HF_TOKEN}"})
    assert objective.name == "${oc.env:HF_TOKEN}"
