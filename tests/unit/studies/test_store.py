"""What a study says about a store that is damaged, foreign or at odds with itself:
one message, exit code 2, nothing lost."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer

from tepo.common.errors import UserError
from tepo.common.files import write_json
from tepo.results.tables import read_samples, study_table
from tepo.store.checkpoint_files import TensorFile
from tepo.store.evaluation_result import Result
from tepo.store.run_folder import RunFolder
from tepo.store.samples_file import SAMPLES, table_of, write_table
from tepo.store.stored_responses import answered
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo.studies.records.write import record_study
from tepo.studies.store_check import check_store, other_versions
from tepo.studies.study import load_study
from tepo.training.checkpoints.saver import Saver
from tepo_cli.commands.doctor import doctor
from tepo_cli.commands.runs import listing
from tests.integration.commands import tepo

STUDY = (
    "title: mine\nbaseline: GRPO/DAPO\nrows:\n  - {{label: GRPO/DAPO, objective: grpo_dapo{row}}}\n"
    "scales:\n  laptop: {{models: [laptop], seeds: [0]}}\n"
)
SCORES = {"avg@4": 1.0, "pass@4": 1.0, "maj@4": 1.0, "truncated": 0.0, "mean_tokens": 1.0}
WORDS = ("train.steps=2", "data.benchmarks=[add3]")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own studies."""
    (tmp_path / "own" / "experiments").mkdir(parents=True)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "own"))
    (tmp_path / "own" / "experiments" / "mine.yaml").write_text(STUDY.format(row=""))
    return tmp_path / "own" / "experiments"


def finished_run(store: Path) -> Unit:
    """The one unit of `mine`, trained and measured as far as files can tell."""
    ((_, (unit,)),) = plan_all(["mine"], "laptop", store=store, overrides=WORDS)
    return finish(unit)


def finish(unit: Unit, **metrics: float) -> Unit:
    """Files as of a unit that was trained for two steps with these metrics and measured on add3."""
    run = RunFolder(unit.folder)
    run.create(unit.config)
    for step in (1, 2):
        run.append_metrics({"training/global_step": step, **metrics})
    run.mark("finished", steps=2)
    sample = {
        "family": "add3",
        "prompt": "1+1=",
        "gold": "2",
        "response": "2",
        "extracted": "2",
        "correct": True,
        "reason": "",
        "tokens": 1,
        "finish": "stop",
        "logprob": 0.0,
        "grader": "g",
    }
    write_table(
        unit.folder / "eval" / "add3" / SAMPLES,
        table_of({"problem": "p", "sample": number, **sample} for number in range(4)),
    )
    write_json(
        unit.folder / "eval" / "add3" / "result.json", asdict(Result("add3", 1, 4, 1.0, None, SCORES, {}, "g", {}))
    )
    return unit


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _hold(path: Path, text: str) -> None:
    path.write_text(text)


def _change(path: Path, **keys: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def _old(path: Path) -> None:
    _change(path, recipe=0, format=0)


DEEP = "[" * 100_000 + "]" * 100_000


DAMAGE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no configuration": (lambda run: (run / "config.json").unlink(), "no configuration", "config.json"),
    "half a configuration": (lambda run: _shorten(run / "config.json"), "not JSON", "config.json"),
    "half a manifest": (lambda run: _shorten(run / "manifest.json"), "not JSON", "manifest.json"),
    "half the metrics": (lambda run: _shorten(run / "metrics.jsonl"), "1 of 2 steps", "metrics.jsonl"),
    "no samples": (lambda run: (run / "eval/add3" / SAMPLES).unlink(), "are missing", SAMPLES),
    "half the samples": (lambda run: _shorten(run / "eval/add3" / SAMPLES), "cannot be read", SAMPLES),
    "a configuration without keys": (
        lambda run: _hold(run / "config.json", "[]"),
        "another version of tepo (unknown)",
        "config.json",
    ),
    "a configuration without its parts": (
        lambda run: _hold(run / "config.json", '{"recipe": 1, "full": {}}'),
        "another version of tepo",
        "config.json",
    ),
    "a configuration with a word for the steps": (
        lambda run: _change(run / "config.json", full={"model": {}, "data": {}, "train": {"steps": "many"}}),
        "the run's configuration is damaged: parts are missing",
        "config.json",
    ),
    "a manifest without keys": (lambda run: _hold(run / "manifest.json", "[]"), "not JSON with keys", "manifest.json"),
    "a line of metrics without keys": (
        lambda run: _hold(run / "metrics.jsonl", "[1]\n{}\n"),
        "line 1 is not a JSON object",
        "metrics.jsonl",
    ),
    "an older configuration": (
        lambda run: _old(run / "config.json"),
        "recipe 0, and tepo 0.1.0 here has",
        "config.json",
    ),
    "a result without scores": (
        lambda run: _change(run / "eval/add3/result.json", scores={}),
        "the result is damaged",
        "result.json",
    ),
    "a result with a word for a number": (
        lambda run: _change(run / "eval/add3/result.json", accuracy="high"),
        "the result is damaged",
        "result.json",
    ),
    "a result without a task": (
        lambda run: _change(run / "eval/add3/result.json", task=None),
        "the result is damaged",
        "result.json",
    ),
    "a result that is a list": (
        lambda run: _hold(run / "eval/add3/result.json", "[]"),
        "not a result of this version",
        "result.json",
    ),
    "a manifest nested without end": (lambda run: _hold(run / "manifest.json", DEEP), "nested more", "manifest.json"),
    "a status that is a list": (lambda run: _change(run / "manifest.json", status=[]), "no status", "manifest.json"),
    **{
        f"an ending that is {ending}": (
            lambda run, ending=ending: _change(run / "manifest.json", ending=ending),
            "the ending is not",
            "manifest.json",
        )
        for ending in ("late", [1], {"kind": "collapse"}, {"kind": "boredom", "step": 1, "why": ""})
    },
    "a configuration nested without end": (lambda run: _hold(run / "config.json", DEEP), "not JSON", "config.json"),
    **{
        f"metrics with {value}": (
            lambda run, value=value: _hold(
                run / "metrics.jsonl", '{"training/global_step": 1}\n{"critic/score/mean": ' + value + "}\n"
            ),
            message,
            "metrics.jsonl",
        )
        for value, message in {
            '"a word"': "line 2 is no row of metrics: 'critic/score/mean' is no number",
            "1" + "0" * 400: "'critic/score/mean' is no number",
            "[0.5]": "'critic/score/mean' is no number",
            "0.5": "line 2 is no row of metrics: the step is missing",
            '"\\ud800"': "line 2 is not JSON of ours: half a character",
            "[" * 101 + "]" * 101: "line 2 is not JSON of ours: nested more than 100 deep",
        }.items()
    },
    "a result that is nested without end": (
        lambda run: _hold(run / "eval/add3/result.json", DEEP),
        "nested more",
        "result.json",
    ),
    "a result without bounds": (
        lambda run: _change(run / "eval/add3/result.json", accuracy=10**400),
        "the result is damaged",
        "result.json",
    ),
    **{
        f"a configuration whose {group} is {value}": (
            lambda run, group=group, value=value: _change(
                run / "config.json", full=json.loads((run / "config.json").read_text())["full"] | {group: value}
            ),
            "the run's configuration is damaged",
            "config.json",
        )
        for group, value in {"model": "x", "data": None, "objective": {"name": ["a"]}, "train": {"steps": "x"}}.items()
    },
    "a result of a nameless benchmark": (
        lambda run: _change(run / "eval/add3/result.json", benchmark=["add3"]),
        "the result is damaged",
        "result.json",
    ),
    "an older result": (lambda run: _old(run / "eval/add3/result.json"), "not a result of this version", "result.json"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_half_a_run_is_named_and_left_alone(name: str, own: Path, tmp_path: Path) -> None:
    damage, message, file = DAMAGE[name]
    unit = finished_run(tmp_path / "store")
    check_store([unit])  # whole, it is fine
    damage(unit.folder)
    before = {path: path.read_bytes() for path in unit.folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as caught:
        plan_all(["mine"], "laptop", store=tmp_path / "store", overrides=WORDS)
    assert message in caught.value.what
    assert caught.value.where.endswith(file)
    assert caught.value.fix
    assert caught.value.exit_code == 2
    assert {path: path.read_bytes() for path in unit.folder.rglob("*") if path.is_file()} == before


def test_a_flipped_bit_of_the_weights_is_found_by_doctor_and_before_a_record_is_written(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a table it is not looked for: all files would be read each time."""
    unit = finished_run(tmp_path / "store")
    with Saver(unit.run) as saver:
        saver.save(2, {}, lambda folder: [TensorFile("model.safetensors", {"a": torch.ones(100)})])
    planned = plan_all(["mine"], "laptop", store=tmp_path / "store", overrides=WORDS)
    assert record_study(tmp_path / "mine.jsonl.xz", planned).recorded == 1
    doctor(tmp_path / "store", selftest=False)
    assert "1 run, 0 damaged; 1 whole\n" in capsys.readouterr().out
    weights = unit.run.checkpoint(2) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(typer.Exit) as ended:
        doctor(tmp_path / "store", selftest=False)
    said = capsys.readouterr().out
    assert ended.value.exit_code == 1
    assert f"run {unit.id}" in said
    assert "DAMAGED: the run says it is finished, but model.safetensors is not as it was written" in said
    assert "1 run, 1 damaged\n" in said
    planned = plan_all(["mine"], "laptop", store=tmp_path / "store", overrides=WORDS)
    (tmp_path / "mine.jsonl.xz").unlink()
    with pytest.raises(UserError, match="not as it was written"):
        record_study(tmp_path / "mine.jsonl.xz", planned)
    assert not (tmp_path / "mine.jsonl.xz").exists()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: (run / "eval/add3" / SAMPLES).unlink(), "the samples behind a result are missing"),
        (lambda run: _change(run / "config.json", seed=7), "not the one that the run is called after"),
        (lambda run: _shorten(run / "manifest.json"), "the manifest is damaged: not JSON"),
        (lambda run: _change(run / "manifest.json", recipe=0), None),  # of another version: not damage
    ],
)
def test_doctor_names_what_is_damaged_and_goes_on(
    damage: Callable[[Path], None], said: str | None, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = finished_run(tmp_path / "store")
    shutil.copytree(unit.folder, tmp_path / "store" / "zzz")  # a run that is called otherwise than its hash
    damage(unit.folder)
    with pytest.raises(typer.Exit):
        doctor(tmp_path / "store", selftest=False)
    shown = capsys.readouterr().out
    assert shown.count("DAMAGED") == (1 if said is None else 2)
    assert said is None or said in shown
    assert ("1 of another version, not checked" in shown) == (said is None)


def test_a_table_says_how_many_answers_the_grader_gave_up(own: Path, tmp_path: Path) -> None:
    unit = finished_run(tmp_path / "runs")
    study = load_study("mine")
    assert not any("budget" in note for note in study_table(study, "laptop", [unit]).notes)
    _change(unit.folder / "eval" / "add3" / "result.json", timeouts=3)
    assert (
        study_table(study, "laptop", [unit]).notes[-1]
        == "Answers that ran out of the grader's budget and count as wrong: 3."
    )


def test_responses_that_are_no_text_are_named(own: Path, tmp_path: Path) -> None:
    """A lone surrogate in UTF-8, which Parquet takes for text unread."""
    unit = finished_run(tmp_path / "runs")
    path = unit.folder / "eval" / "add3" / SAMPLES
    table = pq.read_table(path)
    half = pa.array([b"\xed\xa0\x80"] * len(table), pa.binary()).view(pa.string())
    pq.write_table(table.set_column(table.schema.get_field_index("response"), "response", half), path)
    with pytest.raises(UserError, match="not a readable Parquet file") as caught:
        answered(path.parent)
    assert caught.value.where == str(path)


def test_a_benchmark_that_changed_since_it_was_measured_is_named(own: Path, tmp_path: Path) -> None:
    unit = finished_run(tmp_path / "runs")
    result = unit.folder / "eval" / "add3" / "result.json"
    write_json(result, {**json.loads(result.read_text()), "task": {"fingerprint": "of another definition"}})
    with pytest.raises(UserError, match="add3 was measured under another definition"):
        plan_all(["mine"], "laptop", store=tmp_path / "runs", overrides=WORDS)


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
    assert len(read_samples([unit])) == 4
    path = unit.folder / "eval" / "add3" / SAMPLES
    frame = pd.read_parquet(path).assign(**{column: values})
    frame.drop(columns="correct" if column == "other" else []).to_parquet(path)
    with pytest.raises(UserError, match=r"samples cannot be read|not those behind the result") as caught:
        read_samples([unit])
    assert caught.value.where == str(path)


def test_what_a_run_has_cost_is_a_number(tmp_path: Path) -> None:
    cost = {
        "data": "laptop",
        "objective": "",
        "steps": 1,
        "benchmarks": 0,
        "cpu_s": "x",
        "training_s": 1,
        "measuring_s": 1,
        "tokens": 1,
    }
    write_json(tmp_path / "cost.json", [cost])
    with pytest.raises(UserError, match="a word where a number belongs"):
        RunFolder(tmp_path).costs()


def test_half_the_samples_of_an_evaluation_are_too_few(own: Path, tmp_path: Path) -> None:
    unit = finished_run(tmp_path / "store")
    result = unit.folder / "eval" / "add3" / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "problems": 2}))
    with pytest.raises(UserError, match="4 samples lie there, the result counts 8"):
        check_store([unit])


def test_runs_of_another_version_are_listed_and_kept(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = finished_run(tmp_path / "store")
    assert other_versions(tmp_path / "store") == []
    _old(unit.folder / "manifest.json")
    old = unit.folder.rename(unit.folder.with_name("0123456789ab"))  # another version, another id
    assert other_versions(tmp_path / "store") == [old.name]
    (tmp_path / "store" / "half").mkdir()
    (tmp_path / "store" / "half" / "config.json").write_text('{"id": ')
    shutil.copytree(old, tmp_path / "store" / "torn")
    (tmp_path / "store" / "torn" / "manifest.json").write_text('{"status": "fin')
    shutil.copytree(old, tmp_path / "store" / "lost")
    for name in ("config.json", "manifest.json"):
        (tmp_path / "store" / "lost" / name).unlink()
    (tmp_path / "store" / "lost" / "checkpoints").mkdir(exist_ok=True)
    listing(tmp_path / "store", every=True)
    shown = capsys.readouterr().out
    assert "finished, by another recipe" in shown
    reasons = {
        "half": "config.json is not JSON: copied half?",
        "torn": "the manifest is damaged: not JSON",
        "lost": "no config.json: copied half?",
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
    text = STUDY.format(row=f", reference: {reference}").replace("baseline:", "reference: {table: table1}\nbaseline:")
    (own / "mine.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_study("mine")
    assert message in str(caught.value)
    assert "mine.yaml:5" in caught.value.where


@pytest.mark.parametrize(
    ("launcher", "hint"), [("slurn", "did you mean 'slurm'"), ("slurm", "no Slurm on this machine")]
)
def test_a_launcher_that_is_not_there_trains_nothing(launcher: str, hint: str, tmp_path: Path) -> None:
    words = [part for word in WORDS for part in ("--set", word)]
    store = tmp_path / "store"
    done = tepo("ablate", "panel-e", "--launcher", launcher, "--store", store, *words, PATH="/nowhere")
    assert done.returncode == 2, done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "store").exists()
