import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tepo.common import trust
from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.formula.row import kept_row, present_row, row_of
from tepo.jobs.model_card import card_of
from tepo.launch.local import why
from tepo.objectives import Objective, load_objective
from tepo.objectives.check import CHECKS, check_runs
from tepo.store.checkpoint_files import TensorFile
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import identity, run_id
from tepo.studies.plan import composed
from tepo.studies.plan_studies import plan_all
from tepo.training.checkpoints.saver import Saver
from tepo.training.preflight import check_settings
from tepo.training.run import Run
from tepo_cli.commands.objectives import row_of_run
from tepo_cli.main import app
from tests.unit.objectives.own_examples import examples, follow

CODE = examples()["erf"]["functions/erf.py"]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of TEPO_PATH with functions/erf.py and an objective that calls its function."""
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return follow("erf", tmp_path)


def trained(own: Path) -> RunFolder:
    """A run of one step with its checkpoint."""
    config = compose(["objective=erf", "train.steps=1", f"store={own}/runs"])
    run = RunFolder.of(config)
    run.create(config, identity(config))
    run.append_metrics({"training/global_step": 1})
    with Saver(run) as saver:
        saver.save(1, {}, lambda folder: [TensorFile("model.safetensors", {})])
    run.mark("finished", steps=1)
    return run


def changed(own: Path, old: str, new: str) -> Path:
    """The file with one piece of its code replaced."""
    assert old in CODE
    path = own / "functions" / "erf.py"
    path.write_text(CODE.replace(old, new))
    return path


def test_the_content_is_part_of_the_id_and_the_location_is_not(own: Path) -> None:
    first = run_id(compose(["objective=erf"]))
    row = (own / "objective" / "erf.yaml").read_text()
    (own / "functions" / "other_name.py").write_text(CODE)
    (own / "objective" / "erf.yaml").write_text(row.replace("functions: erf", "functions: other_name"))
    assert run_id(compose(["objective=erf"])) == first
    (own / "functions" / "other_name.py").write_text(CODE.replace("x.erf()", "x.sin()"))
    assert run_id(compose(["objective=erf"])) != first
    (own / "functions" / "other_name.py").unlink()
    with pytest.raises(UserError, match="unknown file of functions 'other_name'"):
        compose(["objective=erf"])


def test_the_command_line_names_a_file(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own)
    ids = set()
    for named in ("erf", "functions/erf.py", str(own / "functions" / "erf.py")):
        config = compose(["objective=grpo_dapo", f"objective.functions={named}", "objective.J=A*erf((w - 1)/0.3)"])
        ids.add(run_id(config))
        assert list(config.objective["functions"].values()) == [CODE]
    assert ids == {run_id(compose(["objective=erf"]))}
    with pytest.raises(UserError, match="unknown function 'hurdle'") as caught:
        compose(["objective=grpo_dapo", "objective.J=A*hurdle(w)"])
    assert "def hurdle(layout, x)" in caught.value.fix


def test_a_run_keeps_the_text_which_is_executed_on_request_alone(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = own / "executed"
    path = changed(own, "return x.erf()", f"open({str(mark)!r}, 'w')\n    return x.erf()")
    config = compose(["objective=erf", f"store={own}/runs"])
    run = RunFolder.of(config)
    run.create(config, identity(config))
    stored = json.loads(run.config_file.read_text())["full"]["objective"]
    assert row_of(stored).formula.digest == load_objective("erf").digest
    assert kept_row(stored, run.path).formula.digest == load_objective("erf").digest  # his own file
    run.check_config()
    path.unlink()
    (own / "objective" / "erf.yaml").unlink()
    assert identity(config)["config"]["objective"] == row_of(stored).formula.digest  # needs no file
    with pytest.raises(UserError, match="the run keeps Python that is not in functions/ of your TEPO_PATH") as caught:
        kept_row(stored, run.path)
    assert caught.value.where == str(run.config_file)
    assert "--trust executes it" in caught.value.fix
    elsewhere = own / "elsewhere.py"
    elsewhere.write_text(CODE)
    with pytest.raises(UserError, match=r"elsewhere\.py"):
        kept_row({**stored, "functions": str(elsewhere)}, run.path)  # a path in place of the text
    assert not mark.exists()

    def swapped(objective: Mapping[str, Any]) -> list[str]:
        elsewhere.write_text(path.name)  # after it was looked at
        return []

    with monkeypatch.context() as patch:
        patch.setattr("tepo.formula.row.foreign_files", swapped)
        kept = kept_row({**stored, "functions": str(elsewhere)}, run.path)
    assert list(kept.functions.values()) == [CODE], "what was looked at is what is executed"
    with trust.caller():
        trust.say(trusts=True)
        check_runs(Objective(**kept_row(stored, run.path).parts))
    assert mark.exists()


def test_a_file_that_changes_after_the_plan_is_another_run(own: Path) -> None:
    (own / "ablations").mkdir()
    study = "title: T\nrows: [{label: A, objective: erf}]\nscales: {laptop: {models: [laptop], seeds: [0]}}\n"
    (own / "ablations" / "few.yaml").write_text(study)
    ((_, (unit,)),) = plan_all(["few"], "laptop", store=own / "runs")
    unit.folder.path.mkdir(parents=True)
    unit.folder.log.touch()
    assert why(unit, "exit code 1") == "exit code 1"
    changed(own, "x.erf()", "x.sin()")
    said = why(unit, "exit code 1")
    composed.cache_clear()  # as `tepo.run` does each time
    ((_, (later,)),) = plan_all(["few"], "laptop", store=own / "runs")
    assert f"run {later.id} now" in said


def test_a_run_is_shown_whatever_became_of_the_file_of_its_objective(own: Path) -> None:
    run = trained(own)
    stored = json.loads(run.config_file.read_text())["full"]["objective"]
    assert f"`erf`: {row_of_run(stored, run.path).about}" in card_of(run)
    (own / "functions" / "erf.py").rename(own / "functions" / "mine.py")  # which the row names no more
    assert present_row("erf") is None
    assert row_of_run(stored, run.path).lines["J"] == "A*erf((w - 1)/width)"
    (own / "functions" / "mine.py").rename(own / "elsewhere.py")
    assert "its Python is in the run's `config.json`" in card_of(run)


@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        ('takes="any"', 'takes="anything"', "unknown word for what erf takes or gives 'anything'", "def erf"),
        ("x.erf()", "x.efr()", "erf: AttributeError: 'Tensor' object has no attribute 'efr'", "x.efr()"),
        ("x.erf()", "x.erf().double()", "erf gives float64 [96] on cpu; expected: float32 [96]", "def erf"),
    ],
)
def test_training_says_what_is_wrong_before_it_starts(own: Path, old: str, new: str, said: str, line: str) -> None:
    path = changed(own, old, new)
    with pytest.raises(UserError) as caught:
        check_settings(Run(compose(["objective=erf"])))
    assert said in caught.value.what
    number = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if line in text)
    assert caught.value.where == f"{path}:{number}"
    assert caught.value.exit_code == 2


def test_the_command_ends_with_the_code_of_the_outcome(own: Path) -> None:
    good = CliRunner().invoke(app, ["explain", "erf", "--check"])
    assert (good.exit_code, good.output.count("pass")) == (0, len(CHECKS))
    changed(own, "x.erf()", "x.erf() - x.mean()")
    bad = CliRunner().invoke(app, ["explain", "erf", "--check"])
    assert bad.exit_code == 1
    assert "micro-batches" in bad.output
