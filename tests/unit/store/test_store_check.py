import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer

from tepo import __version__
from tepo.analysis.tables import read_samples
from tepo.common.errors import UserError
from tepo.store.checkpoint_files import TensorFile
from tepo.store.evaluation_result import SAMPLES
from tepo.store.samples_file import answered
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo.studies.record_runs import record_study
from tepo.studies.store_check import check_store
from tepo.studies.study import load_study
from tepo.training.checkpoints.saver import Saver
from tepo_cli.commands.doctor import doctor
from tepo_cli.commands.runs import listing
from tests.support.results import facts_of, finish, table_from_store
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


def within(**groups: object) -> Damage:
    """Another value of groups of the full configuration."""
    return lambda path: change(full=json.loads(path.read_text())["full"] | groups)(path)


old = change(recipe=0, format=0)
deep = hold("[" * 100_000 + "]" * 100_000)
CONFIG, MANIFEST, METRICS, VERDICTS = "config.json", "manifest.json", "metrics.jsonl", "eval/add3/result.json"
PARTS = {"model": {}, "data": {}, "train": {"steps": "many"}}
DAMAGE: list[tuple[str, Damage, str]] = [
    (CONFIG, Path.unlink, "no configuration"),
    (CONFIG, half, "not JSON"),
    (CONFIG, deep, "not JSON"),
    (CONFIG, hold("[]"), "another version of tepo (unknown)"),
    (CONFIG, hold('{"recipe": 1, "full": {}}'), "another version of tepo"),
    (CONFIG, old, f"recipe 0, and tepo {__version__} here has"),
    (CONFIG, change(full=PARTS), "the run's configuration is damaged: parts are missing"),
    (CONFIG, within(model="x"), "the run's configuration is damaged"),
    (CONFIG, within(train={"steps": "x"}), "the run's configuration is damaged"),
    (MANIFEST, half, "not JSON"),
    (MANIFEST, hold("[]"), "not JSON with keys"),
    (MANIFEST, deep, "nested more"),
    (MANIFEST, change(status=[]), "no status"),
    (MANIFEST, change(ending={"kind": "collapse"}), "the ending is not"),
    (MANIFEST, change(ending={"kind": "boredom", "step": 1, "why": ""}), "the ending is not"),
    (METRICS, half, "1 of 2 steps"),
    (METRICS, hold("[1]\n{}\n"), "line 1 is not a JSON object"),
    *(
        (METRICS, hold(f'{{"training/global_step": 1}}\n{{"critic/score/mean": {value}}}\n'), message)
        for value, message in {
            '"a word"': "line 2 is no row of metrics: 'critic/score/mean' is no number",
            "1" + "0" * 400: "'critic/score/mean' is no number",
            "[0.5]": "'critic/score/mean' is no number",
            "0.5": "line 2 is no row of metrics: the step is missing",
            '"\\ud800"': "line 2 is not JSON of ours: half a character",
            "[" * 101 + "]" * 101: "line 2 is not JSON of ours: nested more than 100 deep",
        }.items()
    ),
    (VERDICTS, change(scores={}), "the result is damaged"),
    (VERDICTS, change(accuracy="high"), "the result is damaged"),
    (VERDICTS, change(accuracy=10**400), "the result is damaged"),
    *((VERDICTS, change(accuracy=odd), "the result is damaged") for odd in (99.0, -0.1, float("nan"), float("inf"))),
    (VERDICTS, change(interval=[0.5, float("nan")]), "the result is damaged"),
    (VERDICTS, change(timeouts=9), "the result is damaged"),
    (VERDICTS, change(grader=None), "the result is damaged"),
    (VERDICTS, change(task=None), "the result is damaged"),
    (VERDICTS, change(benchmark=["add3"]), "the result is damaged"),
    (VERDICTS, hold("[]"), "not a result of this version"),
    (VERDICTS, old, "not a result of this version"),
    (VERDICTS, deep, "nested more"),
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
    ("file", "damage", "said"),
    [
        (f"eval/add3/{SAMPLES}", Path.unlink, "the samples behind the result are gone"),
        (CONFIG, change(seed=7), "does not fit the name of the folder"),
        (MANIFEST, half, "the manifest is damaged: not JSON"),
        (MANIFEST, change(recipe=0), None),  # of another version: not damage
    ],
)
def test_doctor_names_what_is_damaged_and_goes_on(
    file: str, damage: Damage, said: str | None, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = finished_run(tmp_path / "store")
    shutil.copytree(unit.folder.path, tmp_path / "store" / "zzz")  # a run that is called otherwise than its hash
    damage(unit.folder.path / file)
    with pytest.raises(typer.Exit):
        doctor(tmp_path / "store", selftest=False)
    shown = capsys.readouterr().out
    assert shown.count("DAMAGED") == (1 if said is None else 2)
    assert said is None or said in shown
    assert ("1 of another version, not checked" in shown) == (said is None)


def test_a_table_says_how_many_answers_the_grader_gave_up(own: Path, tmp_path: Path) -> None:
    unit = finished_run(tmp_path / "runs")
    study = load_study("mine")
    assert not any("budget" in note for note in table_from_store(study, [unit]).notes)
    path = unit.folder.path / "eval" / "add3" / SAMPLES
    change(timeouts=0)(unit.folder.path / VERDICTS)
    pd.read_parquet(path).assign(reason=["", "timeout", "stalled", "timeout"]).to_parquet(path)
    with pytest.raises(UserError, match="not those behind the result"):
        table_from_store(study, [unit])
    change(timeouts=3)(unit.folder.path / VERDICTS)
    assert (
        table_from_store(study, [unit]).notes[-1]
        == "Answers that ran out of the grader's budget and count as wrong: 3."
    )


def test_responses_that_are_no_text_are_named(own: Path, tmp_path: Path) -> None:
    """A lone surrogate in UTF-8, which Parquet takes for text unread."""
    unit = finished_run(tmp_path / "runs")
    path = unit.folder.path / "eval" / "add3" / SAMPLES
    table = pq.read_table(path)
    half = pa.array([b"\xed\xa0\x80"] * len(table), pa.binary()).view(pa.string())
    pq.write_table(table.set_column(table.schema.get_field_index("response"), "response", half), path)
    with pytest.raises(UserError, match="not a readable Parquet file") as caught:
        answered(path.parent)
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("correct", [True, True, True, None]),
        ("correct", [True, True, True, False]),
        ("problem", ["p", "p", "p", "q"]),
        ("other", [1, 2, 3, 4]),
    ],
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


def test_runs_of_another_version_are_listed_and_kept(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = finished_run(tmp_path / "store")
    old(unit.folder.path / MANIFEST)
    other = unit.folder.path.rename(unit.folder.path.with_name("0123456789ab"))  # another version, another id
    (tmp_path / "store" / "half").mkdir()
    (tmp_path / "store" / "half" / "config.json").write_text('{"id": ')
    shutil.copytree(other, tmp_path / "store" / "torn")
    (tmp_path / "store" / "torn" / "manifest.json").write_text('{"status": "fin')
    shutil.copytree(other, tmp_path / "store" / "lost")
    for name in ("config.json", "manifest.json"):
        (tmp_path / "store" / "lost" / name).unlink()
    (tmp_path / "store" / "lost" / "checkpoints").mkdir(exist_ok=True)
    listing(store=tmp_path / "store", every=True)
    shown = capsys.readouterr().out
    assert "finished, by another recipe" in shown
    reasons = {
        "half": "config.json is missing, cut off or of another version",
        "torn": "the manifest is damaged: not JSON",
        "lost": "config.json is missing, cut off or of another version",
    }
    for name, reason in reasons.items():
        assert f"{name} – – – – unreadable: {reason}" in shown


def test_a_row_is_one_run_on_one_page(own: Path, tmp_path: Path) -> None:
    (own / "other.yaml").write_text(STUDY.format(row=", overrides: [train.epochs=1]"))
    with pytest.raises(UserError) as caught:
        plan_all(["mine", "other"], "laptop", store=tmp_path)
    assert "'GRPO/DAPO' is one run in mine and another in other" in caught.value.what
    assert "train.epochs=1" in caught.value.what
    assert len(plan_all(["other"], "laptop", store=tmp_path)) == 1  # alone it is fine
    (own / "same.yaml").write_text(STUDY.format(row=", overrides: [train.epochs=2]"))  # other words, the same run
    assert len(plan_all(["mine", "same"], "laptop", store=tmp_path)) == 2


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("tepoo", "did you mean 'tepo'"),
        ("{method: tepo, panel: Z}", "unknown panel"),
        ("{method: tepo, colum: 3}", "unknown key of rows[0].reference 'colum'"),
        ("{table: table9, method: tepo}", "table9"),
    ],
)
def test_a_paper_row_that_is_not_there_is_named_before_anything_runs(reference: str, message: str, own: Path) -> None:
    shared = "reference: {table: papers/tepo/table1.csv}"
    text = STUDY.format(row=f", reference: {reference}").replace("baseline:", f"{shared}\nbaseline:")
    (own / "mine.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_study("mine")
    assert message in str(caught.value)
    assert "mine.yaml:5" in caught.value.where
