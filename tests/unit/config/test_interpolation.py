"""A `${key}` stands for another key of the configuration, and nothing of the environment gets into what is stored."""

from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.jobs.model_card import command_of
from tepo.objectives import load_objective
from tepo.store.run_folder import RunFolder
from tests.unit.config.test_own_groups import save_files

NO_KEY = "is no key of the configuration"
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
        "model.name='${HF_TOKEN}'",
        "model.name=${${data.name}:HF_TOKEN}",
        "model.name=${train}",
        "data.benchmarks=[${oc.env:HF_TOKEN}]",
        "data.problems=${oc.env:HF_TOKEN}.jsonl",
        "store=${oc.env:HF_TOKEN}/runs",
    ],
)
def test_an_override_reads_nothing_outside(word: str, own: Path) -> None:
    with pytest.raises(UserError, match=NO_KEY) as mistake:
        compose([word])
    assert mistake.value.where.startswith(word)
    assert SECRET not in str(mistake.value)


def test_a_file_reads_nothing_outside(own: Path) -> None:
    (own / "data/sums.yaml").write_text("name: ${oc.env:HF_TOKEN}\nbase: package:laptop\n")
    with pytest.raises(UserError, match=NO_KEY) as mistake:
        compose(["data=sums"])
    assert str(mistake.value.where).startswith(f"{own / 'data/sums.yaml'}:1 (")


def test_an_objective_resolves_nothing(own: Path) -> None:
    path = own / "objective/mine.yaml"
    path.write_text(path.read_text().replace("value: 0.1", "value: '${oc.env:HF_TOKEN}'", 1))
    with pytest.raises(UserError, match=r"\$\{oc\.env:HF_TOKEN\}") as mistake:
        compose(["objective=mine"])
    assert f"{path}:" in str(mistake.value)


def test_what_the_configuration_itself_holds_is_there(own: Path) -> None:
    words = ["scale=brief", "model.name=on ${data.name}", "data.max_new_tokens=31", "train.warmup_steps=${train.steps}"]
    config = compose([*words, "wandb.group=${sampler.max_rows, 7}", "wandb.project=${model.revision, 7}"])
    assert (config.model.name, config.train.max_new_tokens, config.train.warmup_steps) == ("on laptop", 31, 2)
    assert (config.wandb.group, config.wandb.project) == ("7", "7")
    with pytest.raises(UserError, match=r"model\.name is itself"):
        compose(["model.name=${wandb.group}", "wandb.group=${model.name}"])


def test_a_scale_chooses_the_options_of_other_groups(own: Path) -> None:
    path = own / "scale/brief.yaml"
    text = path.read_text()
    path.write_text(f"defaults: {{data: sums, sampler: vllm}}\n{text}")
    config = compose(["scale=brief", "sampler=torch"])
    assert (config.data.name, config.sampler.kind) == ("sums", "torch")
    for defaults, message in (
        ("{data: smus}", "did you mean 'sums'"),
        ("{date: sums}", "'data'"),
        ("[sums]", "mapping"),
    ):
        path.write_text(f"defaults: {defaults}\n{text}")
        with pytest.raises(UserError, match=message) as mistake:
            compose(["scale=brief"])
        assert f"{path}:1" in mistake.value.where


def test_a_stored_configuration_is_text(own: Path) -> None:
    """Neither its objective nor the command of its card is resolved."""
    config = compose(["objective=mine"])
    config.model.name = config.wandb.project = "${oc.env:HF_TOKEN}"
    assert SECRET not in command_of(config, RunFolder.of(config))
    objective = load_objective({**config.objective, "name": "${oc.env:HF_TOKEN}"})
    assert objective.name == "${oc.env:HF_TOKEN}"
