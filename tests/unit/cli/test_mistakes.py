"""Called in this process, as a process each takes seconds."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.store.run_folder import RunFolder
from tepo.studies import planned_facts
from tepo.studies.plan_studies import plan_all
from tepo_cli.commands.studies import reproduce
from tepo_cli.commands.tables import figure, report
from tepo_cli.main import app
from tepo_cli.show_scores import find_target
from tests.support.commands import tepo
from tests.support.results import finish
from tests.support.runs import write


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("ablate panel-x", "panel_"),
        ("ablate panel-e --scale labtop", "'laptop'"),
        ("ablate panel-e --slurm minutes=5", "add --launcher slurm"),
        ("ablate panel-e --format pdf", "unknown format 'pdf'"),
        ("ablate panel-e --set objective.hgih=1 --dry-run", "row 'GRPO/DAPO'"),
        ("eval ad3 --model package:laptop", "add3"),
        ("eval add3 --model nowhere/at/all", "no model"),
        ("eval --model package:laptop", "no benchmark to evaluate on"),
        ("eval --model base --model package:laptop", "another kind of model with a conf"),
        ("explain tepo gspo", "--vs NAME"),
        ("train objective.betta=1", "'beta'"),
        ("train objective.betta=1 --dry-run", "'beta'"),
        ("train train.max_new_tokens=100000", "the model has 256 positions"),
        ("table panel-e", "--records"),
        ("figure gtpo-5", "'gtpo-1'"),
        ("figure panel-e --against sample", "'samples'"),
        ("report", "--records"),
    ],
)
def test_a_mistake_leaves_nothing_on_disk(words: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(app, [*words.split(), "--store", str(tmp_path / "runs")], catch_exceptions=False)
    assert caught.value.exit_code == 2
    assert hint in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["out", "results"])
def test_a_folder_in_the_place_of_the_page_is_said_before_the_work(option: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError) as caught:
        reproduce(["panel-e"], store=tmp_path / "runs", **{option: tmp_path / "folder"})
    assert caught.value.fix.startswith(f"--{option} {tmp_path / 'folder'}/report.")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder"]


def test_a_run_to_evaluate_that_is_not_there_or_not_whole(tmp_path: Path) -> None:
    run = tmp_path / "0123456789ab"
    write(run / "config.json", "[]")

    def refused(model: str, message: str) -> None:
        with pytest.raises(UserError, match=message):
            find_target(model, tmp_path, None)

    refused("0123456789ac", "no model and no run .*\n.*\n.*did you mean '0123456789ab'")  # the network is not asked
    (run / "checkpoints").mkdir()
    refused(run.name, "another version")
    shutil.rmtree(run)
    for name in ("0123456789ab", "0199999999ab"):
        folder = RunFolder(tmp_path / name)
        folder.create(compose([f"store={tmp_path}"]), {})
        folder.mark("running")
    refused("01", "2 runs begin with '01'")
    refused("0123", "0123456789ab")  # found, and it has no checkpoint


@pytest.mark.parametrize(
    "words", [("reproduce", "panel-a", "--records", "--scale", "paper"), ("records", "write", "panel-a"), ("report",)]
)
def test_where_nothing_was_measured_nothing_is_written(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "report.html").write_text("mine")
    assert "error: no" in tepo(*words, cwd=tmp_path, code=2).stderr
    assert (tmp_path / "report.html").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "runs"]


STUDY = """
title: {title}
baseline: plain
rows: [{{label: plain, objective: grpo_dapo}}, {{label: other, objective: {other}}}]
scales: {{laptop: {{models: [laptop], seeds: [0, 1], overrides: [train.steps=2, "data.benchmarks=[add3]"]}}}}
"""
METRICS = {"critic/score/mean": 0.5, "timing_s/step": 2.0, "timing_s/gen": 1.5, "training/responses": 32}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All runs of `mine`; `lacking` shares the baseline with it, and lacks its other row."""
    for name, other in (("mine", "gspo"), ("lacking", "tepo")):
        write(tmp_path / f"own/experiments/{name}.yaml", STUDY.format(title=name, other=other))
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "own"))
    names = ["lacking", "mine"]  # a plan of all studies takes seconds
    monkeypatch.setattr(planned_facts, "study_names", lambda: names)
    ((_, units),) = plan_all(["mine"], "laptop", store=tmp_path / "runs")
    for unit in units:
        finish(unit, 0.8 if unit.label == "plain" else 0.5, **METRICS)
    return tmp_path / "runs"


def test_a_page_without_a_study_named_is_of_those_that_are_measured(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(None, store=store, out=store.parent / "page.html")
    assert "on the page: mine" in capsys.readouterr().err
    text = (store.parent / "page.html").read_text()
    assert 'id="table-mine"' in text
    assert "lacking" not in text


@pytest.mark.parametrize("call", [report, figure])
@pytest.mark.usefixtures("store")
def test_a_page_or_a_figure_of_nothing_is_refused(call: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match=r"measured|nothing of lacking was run") as caught:
        call("lacking" if call is figure else ["lacking"], store=tmp_path / "none", out=tmp_path / "out")
    assert caught.value.exit_code == 2
    assert caught.value.fix.startswith("tepo ablate ")
    assert not (tmp_path / "out").exists()
