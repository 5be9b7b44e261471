"""A run is what its files say: one that is damaged, edited or moved is named, and no command believes it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from tepo import __version__
from tepo.analysis.run_result import RunResult
from tepo.analysis.tables import read_samples
from tepo.common.errors import UserError
from tepo.common.files import content_hash, file_digest
from tepo.store.checkpoint_files import TensorFile
from tepo.store.evaluation_result import SAMPLES, Result, save_result
from tepo.store.run_folder import RunFolder
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo.studies.record_runs import record_study
from tepo.studies.store_check import check_store
from tepo.studies.study import load_study
from tepo.training.checkpoints.saver import Saver
from tests.support.results import facts_of
from tests.unit.store.conftest import COMMANDS, STUDY, WORDS, Command, finished_run, tree

OTHER = "the stored configuration does not fit the name of the folder"


def run_of(store: Path, *words: str, seed: int = 0) -> Unit:
    """A finished run with weights of a kind."""
    unit = finished_run(store, *words, seed=seed)
    with Saver(unit.folder) as saver:
        saver.save(2, {}, lambda folder: [TensorFile("model.safetensors", {"a": torch.ones(10)})])
    return unit


def edit(file: Path, change: Callable[[dict], object]) -> None:
    held = json.loads(file.read_text())
    change(held)
    file.write_text(json.dumps(held))


# damaged --------------------------------------------------------------------------------------------------------------
Damage = Callable[[Path], object]


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def hold(text: str) -> Damage:
    return lambda path: path.write_text(text)


def change(**keys: object) -> Damage:
    return lambda path: edit(path, lambda held: held.update(keys))


old = change(recipe=0, format=0)
ROW = '{"training/global_step": 1}\n{"critic/score/mean": %s}\n'
CONFIG, MANIFEST, METRICS, VERDICTS = "config.json", "manifest.json", "metrics.jsonl", "eval/add3/result.json"
DAMAGE: list[tuple[str, Damage, str]] = [
    (CONFIG, Path.unlink, "no configuration"),
    (CONFIG, half, "not JSON"),
    (CONFIG, hold("[" * 100_000 + "]" * 100_000), "not JSON"),
    (CONFIG, hold("[]"), "another version of tepo (unknown)"),
    (CONFIG, old, f"recipe 0, and tepo {__version__} here has"),
    (CONFIG, change(full={"model": {}, "data": {}, "train": {"steps": "many"}}), "damaged: parts are missing"),
    (MANIFEST, change(status=[]), "no status"),
    (MANIFEST, change(ending={"kind": "collapse"}), "the ending is not"),
    (METRICS, half, "1 of 2 steps"),
    (METRICS, hold("[1]\n{}\n"), "line 1 is not a JSON object"),
    (METRICS, hold(ROW % '"a word"'), "line 2 is no row of metrics"),
    (METRICS, hold(ROW % '"\\ud800"'), "line 2 is not JSON"),
    (VERDICTS, change(accuracy=99.0), "the result is damaged"),
    (VERDICTS, change(accuracy=float("nan")), "the result is damaged"),
    (VERDICTS, change(task=None), "the result is damaged"),
    (VERDICTS, old, "not a result of this version"),
    (f"eval/add3/{SAMPLES}", Path.unlink, "are missing"),
]


@pytest.mark.parametrize(("file", "damage", "message"), DAMAGE)
def test_half_a_run_is_named_and_left_alone(file: str, damage: Damage, message: str, own: Path, tmp_path: Path) -> None:
    unit = finished_run(tmp_path / "store")
    check_store([unit])  # whole, it is fine
    damage(unit.folder.path / file)
    before = tree(unit.folder.path)
    with pytest.raises(UserError) as caught:
        plan_all(["mine"], "laptop", store=tmp_path / "store", overrides=WORDS)
    assert message in caught.value.what
    assert caught.value.where.endswith(Path(file).name)
    assert caught.value.fix
    assert caught.value.exit_code == 2
    assert tree(unit.folder.path) == before


def test_a_flipped_bit_of_the_weights_is_found_by_doctor_and_before_a_record_is_written(
    own: Path, tmp_path: Path, command: Command
) -> None:
    """Before a table it is not looked for: all files would be read each time."""
    unit = run_of(tmp_path / "store")
    planned = plan_all(["mine"], "laptop", store=tmp_path / "store", overrides=WORDS)
    assert record_study(tmp_path / "mine", planned).recorded == 1
    code, said = command("doctor", "--no-selftest")
    assert (code, "1 run, 0 damaged; 1 whole" in said) == (0, True)
    weights = unit.folder.checkpoint(2) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    code, said = command("doctor", "--no-selftest")
    assert (code, "1 run, 1 damaged" in said, f"run {unit.id}" in said) == (1, True, True)
    assert "DAMAGED: the run says it is finished, but model.safetensors is not as it was written" in said
    planned = plan_all(["mine"], "laptop", store=tmp_path / "store", overrides=WORDS)
    shutil.rmtree(tmp_path / "mine")
    with pytest.raises(UserError, match="not as it was written"):
        record_study(tmp_path / "mine", planned)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("column", "values"),
    [("correct", [True, True, True, False]), ("problem", ["p", "p", "p", "q"]), ("other", [1, 2, 3, 4])],
)
def test_a_table_is_not_made_from_other_samples_than_the_result(
    column: str, values: list, own: Path, tmp_path: Path
) -> None:
    unit = finished_run(tmp_path / "store")
    assert read_samples([unit], facts_of(load_study("mine"), [unit]))["samples"].tolist() == [4]
    path = unit.folder.path / "eval" / "add3" / SAMPLES
    frame = pd.read_parquet(path).assign(**{column: values})
    frame.drop(columns="correct" if column == "other" else []).to_parquet(path)
    with pytest.raises(UserError, match=r"samples cannot be read|not those behind the result") as caught:
        read_samples([unit], facts_of(load_study("mine"), [unit]))
    assert caught.value.where == str(path)


def test_a_row_is_one_run_on_one_page(own: Path, tmp_path: Path) -> None:
    (own / "other.yaml").write_text(STUDY.format(row=", overrides: [train.epochs=1]"))
    with pytest.raises(UserError) as caught:
        plan_all(["mine", "other"], "laptop", store=tmp_path)
    assert "'GRPO/DAPO' is one run in mine and another in other" in caught.value.what
    assert len(plan_all(["other"], "laptop", store=tmp_path)) == 1  # alone it is fine
    (own / "same.yaml").write_text(STUDY.format(row=", overrides: [train.epochs=2]"))  # other words, the same run
    assert len(plan_all(["mine", "same"], "laptop", store=tmp_path)) == 2


# edited, or moved -----------------------------------------------------------------------------------------------------
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


def with_new_digest(folder: Path, change: Callable[[dict], object]) -> None:
    """By somebody who knows of the digest in the manifest."""
    edit(folder / CONFIG, change)
    edit(folder / MANIFEST, lambda held: held.update(config_sha256=file_digest(folder / CONFIG)))


def seed_1_as_seed_0(folder: Path) -> None:
    shutil.rmtree(folder)
    run_of(folder.parent, seed=1).folder.path.rename(folder)


def with_new_ids(folder: Path) -> None:
    seed_1_as_seed_0(folder)
    edit(folder / MANIFEST, lambda held: held.update(id=folder.name))
    with_new_digest(folder, lambda held: held.update(id=folder.name))


KINDS: dict[str, tuple[Damage, str]] = {
    "seed 1 as seed 0": (seed_1_as_seed_0, f"{OTHER}: it is that of run"),
    "with new ids": (with_new_ids, f"{OTHER}: edited, or damaged?"),
    "learning rate": (lambda folder: with_new_digest(folder, EDITS["as hashed"]), f"{OTHER}: edited, or damaged?"),
    "recipe": (lambda folder: change(recipe=2)(folder / MANIFEST), "made by recipe 2, and this is recipe 3"),
    "its recipe": (lambda folder: change(recipe=2)(folder / CONFIG), f"tepo {__version__} here has recipe 3"),
}


@pytest.mark.parametrize(
    ("name", "kind"),  # to regrade, responses alone are read
    [
        *((name, "seed 1 as seed 0") for name in COMMANDS if name != "regrade"),
        *(("table", kind) for kind in KINDS if kind != "seed 1 as seed 0"),
    ],
)
def test_no_command_believes_it(name: str, kind: str, own: Path, tmp_path: Path, command: Command) -> None:
    unit, (forge, message) = run_of(tmp_path / "store"), KINDS[kind]
    forge(unit.folder.path)
    before = tree(tmp_path)
    code, said = command(*COMMANDS[name](unit))
    assert message in said
    assert (OTHER in said) == (OTHER in message)  # of another recipe it is not called forged
    assert code == (1 if name == "measure" else 2)
    assert tree(tmp_path) == before
    with pytest.raises(UserError):
        RunResult(unit.folder.path).scores()


@pytest.mark.parametrize("weights", ["0123456789ab/step_000002", "{id}/step_000001", "base"])
def test_a_measurement_of_other_weights_is_not_the_runs(weights: str, own: Path, tmp_path: Path) -> None:
    unit = run_of(tmp_path / "store")
    file, asked = unit.folder.path / VERDICTS, (RunFolder.right_answers, RunFolder.result)
    change(task={"policy": {"weights": f"{unit.id}/step_000002"}})(file)
    for ask in asked:
        ask(RunFolder(unit.folder.path), "add3")
    change(task={"policy": {"weights": weights.format(id=unit.id)}})(file)
    for ask in asked:
        with pytest.raises(UserError, match="add3 was measured with other weights"):
            ask(RunFolder(unit.folder.path), "add3")
    with pytest.raises(UserError, match="add3 was measured with other weights"):
        plan_all(["mine"], "laptop", store=tmp_path / "store", overrides=WORDS)


def test_measurements_of_a_base_are_those_of_the_base_that_its_folder_is_called_after(tmp_path: Path) -> None:
    runs = {name: RunFolder(tmp_path / f"base-{content_hash(name)}") for name in ("one", "other")}
    scores = {"avg@1": 1.0, "truncated": 0.0, "mean_tokens": 1.0}
    for run in runs.values():
        result = Result("add3", 1, 1, 1.0, None, scores, {}, "g", {"policy": {"weights": "one"}})
        save_result(run.path / "eval" / "add3", result)
    assert runs["one"].result("add3").grader == "g"
    with pytest.raises(UserError, match="add3 was measured with other weights: one"):
        runs["other"].result("add3")
