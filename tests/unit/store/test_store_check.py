import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
import typer

from tepo import __version__
from tepo.analysis.tables import read_samples
from tepo.common.errors import UserError
from tepo.store.checkpoint_files import TensorFile
from tepo.store.evaluation_result import SAMPLES
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo.studies.record_runs import record_study
from tepo.studies.store_check import check_store
from tepo.studies.study import load_study
from tepo.training.checkpoints.saver import Saver
from tepo_cli.commands.doctor import doctor
from tests.support.results import facts_of, finish
from tests.unit.store.conftest import STUDY

WORDS = ("train.steps=2", "data.benchmarks=[add3]")


def finished_run(store: Path) -> Unit:
    """The one unit of `mine`, trained and measured as far as files can tell."""
    ((_, (unit,)),) = plan_all(["mine"], "laptop", store=store, overrides=WORDS)
    finish(unit, 1.0, problems=1)
    return unit


Damage = Callable[[Path], object]


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def hold(text: str) -> Damage:
    return lambda path: path.write_text(text)


def change(**keys: object) -> Damage:
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


old = change(recipe=0, format=0)
deep = hold("[" * 100_000 + "]" * 100_000)
CONFIG, MANIFEST, METRICS, VERDICTS = "config.json", "manifest.json", "metrics.jsonl", "eval/add3/result.json"
PARTS = {"model": {}, "data": {}, "train": {"steps": "many"}}
DAMAGE: list[tuple[str, Damage, str]] = [
    (CONFIG, Path.unlink, "no configuration"),
    (CONFIG, half, "not JSON"),
    (CONFIG, deep, "not JSON"),
    (CONFIG, hold("[]"), "another version of tepo (unknown)"),
    (CONFIG, old, f"recipe 0, and tepo {__version__} here has"),
    (CONFIG, change(full=PARTS), "the run's configuration is damaged: parts are missing"),
    (MANIFEST, half, "not JSON"),
    (MANIFEST, change(status=[]), "no status"),
    (MANIFEST, change(ending={"kind": "collapse"}), "the ending is not"),
    (METRICS, half, "1 of 2 steps"),
    (METRICS, hold("[1]\n{}\n"), "line 1 is not a JSON object"),
    *(
        (METRICS, hold(f'{{"training/global_step": 1}}\n{{"critic/score/mean": {value}}}\n'), f"line 2 is no{message}")
        for value, message in {'"a word"': " row of metrics", "0.5": " row of metrics", '"\\ud800"': "t JSON"}.items()
    ),
    (VERDICTS, change(accuracy=99.0), "the result is damaged"),
    (VERDICTS, change(accuracy=float("nan")), "the result is damaged"),
    (VERDICTS, change(timeouts=9), "the result is damaged"),
    (VERDICTS, change(task=None), "the result is damaged"),
    (VERDICTS, old, "not a result of this version"),
    (f"eval/add3/{SAMPLES}", Path.unlink, "are missing"),
]


@pytest.mark.parametrize(("file", "damage", "message"), DAMAGE)
def test_half_a_run_is_named_and_left_alone(file: str, damage: Damage, message: str, own: Path, tmp_path: Path) -> None:
    unit = finished_run(tmp_path / "store")
    check_store([unit])  # whole, it is fine
    damage(unit.folder.path / file)
    before = {path: path.read_bytes() for path in unit.folder.path.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as caught:
        plan_all(["mine"], "laptop", store=tmp_path / "store", overrides=WORDS)
    assert message in caught.value.what
    assert caught.value.where.endswith(Path(file).name)
    assert caught.value.fix
    assert caught.value.exit_code == 2
    assert {path: path.read_bytes() for path in unit.folder.path.rglob("*") if path.is_file()} == before


def test_a_flipped_bit_of_the_weights_is_found_by_doctor_and_before_a_record_is_written(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a table it is not looked for: all files would be read each time."""
    unit = finished_run(tmp_path / "store")
    with Saver(unit.folder) as saver:
        saver.save(2, {}, lambda folder: [TensorFile("model.safetensors", {"a": torch.ones(100)})])
    planned = plan_all(["mine"], "laptop", store=tmp_path / "store", overrides=WORDS)
    assert record_study(tmp_path / "mine", planned).recorded == 1
    doctor(tmp_path / "store", selftest=False)
    assert "1 run, 0 damaged; 1 whole\n" in capsys.readouterr().out
    weights = unit.folder.checkpoint(2) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(typer.Exit) as ended:
        doctor(tmp_path / "store", selftest=False)
    said = capsys.readouterr().out
    assert ended.value.exit_code == 1
    assert f"run {unit.id}" in said
    assert "DAMAGED: the run says it is finished, but model.safetensors is not as it was written" in said
    assert "1 run, 1 damaged\n" in said
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
    assert "train.epochs=1" in caught.value.what
    assert len(plan_all(["other"], "laptop", store=tmp_path)) == 1  # alone it is fine
    (own / "same.yaml").write_text(STUDY.format(row=", overrides: [train.epochs=2]"))  # other words, the same run
    assert len(plan_all(["mine", "same"], "laptop", store=tmp_path)) == 2
