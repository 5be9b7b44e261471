import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tepo import __version__
from tepo.analysis.run_result import RunResult
from tepo.common.errors import UserError
from tepo.common.files import content_hash, file_digest
from tepo.store.checkpoint_files import TensorFile
from tepo.store.run_folder import RunFolder
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo.training.checkpoints.saver import Saver
from tests.support.results import finish
from tests.unit.store.test_links import COMMANDS, of_store
from tests.unit.store.test_store_check import WORDS

OTHER = "the stored configuration does not fit the name of the folder"


def run_of(store: Path, *words: str, seed: int = 0) -> Unit:
    """The unit of `mine` with this seed, trained and measured as far as files can tell, with weights of a kind."""
    ((_, (unit,)),) = plan_all(["mine"], "laptop", store=store, overrides=(*WORDS, *words), seeds=[seed])
    finish(unit, 1.0, problems=1)
    with Saver(unit.folder) as saver:
        saver.save(2, {}, lambda folder: [TensorFile("model.safetensors", {"a": torch.ones(10)})])
    return unit


def edit(file: Path, change: Callable[[dict], object]) -> None:
    held = json.loads(file.read_text())
    change(held)
    file.write_text(json.dumps(held))


def with_new_digest(run: RunFolder, change: Callable[[dict], object]) -> None:
    """By somebody who knows of the digest in the manifest."""
    edit(run.config_file, change)
    edit(run.manifest_file, lambda held: held.update(config_sha256=file_digest(run.config_file)))


EDITS: dict[str, Callable[[dict], object]] = {
    "learning rate": lambda held: held["full"]["train"].update(learning_rate=1.0),
    "as hashed": lambda held: held["config"]["train"].update(learning_rate=1.0),
    "base": lambda held: held.update(base="0123456789ab"),
    "no seed": lambda held: held.pop("seed"),
}


@pytest.mark.parametrize("change", EDITS)
def test_an_edited_configuration_is_refused(change: str, own: Path, tmp_path: Path) -> None:
    run = run_of(tmp_path / "store").folder
    run.check_whole()
    edit(run.config_file, EDITS[change])
    with pytest.raises(UserError, match=f"{OTHER}: edited, or damaged") as caught:
        run.check_whole()
    assert (caught.value.where, caught.value.exit_code) == (str(run.config_file), 2)


def seed_1_as_seed_0(unit: Unit, store: Path) -> None:
    shutil.rmtree(unit.folder.path)
    run_of(store, seed=1).folder.path.rename(unit.folder.path)


def seed_1_as_seed_0_with_new_ids(unit: Unit, store: Path) -> None:
    seed_1_as_seed_0(unit, store)
    edit(unit.folder.path / "manifest.json", lambda held: held.update(id=unit.id))
    with_new_digest(RunFolder(unit.folder.path), lambda held: held.update(id=unit.id))


def another_learning_rate(unit: Unit, store: Path) -> None:
    with_new_digest(RunFolder(unit.folder.path), EDITS["as hashed"])


def another_recipe(unit: Unit, store: Path) -> None:
    edit(unit.folder.path / "manifest.json", lambda held: held.update(recipe=2))


def another_recipe_in_the_configuration(unit: Unit, store: Path) -> None:
    edit(unit.folder.path / "config.json", lambda held: held.update(recipe=2))


KINDS: dict[Callable[[Unit, Path], None], str] = {
    seed_1_as_seed_0: f"{OTHER}: it is that of run",
    seed_1_as_seed_0_with_new_ids: f"{OTHER}: edited, or damaged?",
    another_learning_rate: f"{OTHER}: edited, or damaged?",
    another_recipe: "the run was made by recipe 2, and this is recipe 3",
    another_recipe_in_the_configuration: f"the run was trained by recipe 2, and tepo {__version__} here has recipe 3",
}


@pytest.mark.parametrize(
    ("name", "kind"),  # to regrade, responses alone are read
    [
        *((name, seed_1_as_seed_0) for name in COMMANDS if "regrade" not in name),
        *(("table", kind) for kind in KINDS if kind is not seed_1_as_seed_0),
    ],
)
def test_no_command_believes_it(
    name: str,
    kind: Callable[[Unit, Path], None],
    own: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unit = run_of(tmp_path / "store")
    kind(unit, tmp_path / "store")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.chdir(tmp_path)
    code = of_store(COMMANDS[name](unit), tmp_path / "store", monkeypatch)
    said = " ".join(capsys.readouterr().err.split())
    assert KINDS[kind] in said
    assert ("does not fit the name" in said) == ("recipe" not in kind.__name__)  # not called forged
    assert code == (1 if name == "measure" else 2)
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(UserError):
        RunResult(unit.folder.path).scores()


@pytest.mark.parametrize("weights", ["0123456789ab/step_000002", "{id}/step_000001", "base"])
def test_a_measurement_of_other_weights_is_not_the_runs(weights: str, own: Path, tmp_path: Path) -> None:
    unit = run_of(tmp_path / "store")
    file = unit.folder.path / "eval" / "add3" / "result.json"
    for name, own_one in ((f"{unit.id}/step_000002", True), (weights.format(id=unit.id), False)):
        edit(file, lambda held, name=name: held["task"].update(policy={"weights": name}))
        for ask in (RunFolder.right_answers, RunFolder.result):
            if own_one:
                ask(RunFolder(unit.folder.path), "add3")
                continue
            with pytest.raises(UserError, match="add3 was measured with other weights"):
                ask(RunFolder(unit.folder.path), "add3")
    with pytest.raises(UserError, match="add3 was measured with other weights"):
        plan_all(["mine"], "laptop", store=tmp_path / "store", overrides=WORDS)


def test_measurements_of_a_base_are_those_of_the_base_that_its_folder_is_called_after(tmp_path: Path) -> None:
    name, other = (f"base-{content_hash(weights)}" for weights in ("one", "other"))
    for folder, own_one in ((name, True), (other, False)):
        file = tmp_path / folder / "eval" / "add3" / "result.json"
        file.parent.mkdir(parents=True)
        scores = {"avg@1": 1.0, "truncated": 0.0, "mean_tokens": 1.0}
        parts = {"benchmark": "add3", "problems": 1, "samples": 1, "accuracy": 1.0, "interval": None, "scores": scores}
        file.write_text(json.dumps({**parts, "subsets": {}, "grader": "g", "task": {"policy": {"weights": "one"}}}))
        if own_one:
            assert RunFolder(tmp_path / folder).result("add3").grader == "g"
        else:
            with pytest.raises(UserError, match="add3 was measured with other weights: one"):
                RunFolder(tmp_path / folder).result("add3")
