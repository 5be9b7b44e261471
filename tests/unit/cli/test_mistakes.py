"""Called in this process, as a process each takes seconds."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.store.run_folder import RunFolder
from tepo_cli.main import app
from tepo_cli.show_scores import find_target
from tests.support.commands import tepo
from tests.support.runs import write


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("ablate panel-x", "panel_"),
        ("ablate panel-e --scale labtop", "'laptop'"),
        ("ablate panel-e --slurm minutes=5", "add --launcher slurm"),
        ("ablate panel-e --set objective.hgih=1 --dry-run", "row 'GRPO/DAPO'"),
        ("eval ad3 --model package:laptop", "add3"),
        ("eval --model base --model package:laptop", "another kind of model with a conf"),
        ("explain tepo gspo", "--vs NAME"),
        ("train objective.betta=1 --dry-run", "'beta'"),
        ("train train.max_new_tokens=100000", "the model has 256 positions"),
        ("table panel-e", "--records"),
        ("report", "--records"),
    ],
)
def test_a_mistake_leaves_nothing_on_disk(words: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(app, [*words.split(), "--store", str(tmp_path / "runs")], catch_exceptions=False)
    assert caught.value.exit_code == 2
    assert hint in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_run_to_evaluate_that_is_not_there_or_not_whole(tmp_path: Path) -> None:
    write(tmp_path / "0123456789ac/config.json", "[]")
    write(tmp_path / "0123456789ac/checkpoints/any", "")
    for name in ("0123456789ab", "0199999999ab"):
        folder = RunFolder(tmp_path / name)
        folder.create(compose([f"store={tmp_path}"]), {})
        folder.mark("running")
    for model, message in (
        ("0123456789ad", "no model and no run .*\n.*\n.*did you mean '0123456789a"),  # the network is not asked
        ("0123456789ac", "another version"),
        ("01", "2 runs begin with '01'"),
        ("0199", "0199999999ab"),  # it has no checkpoint
    ):
        with pytest.raises(UserError, match=message):
            find_target(model, tmp_path, None)


@pytest.mark.parametrize(
    "words", [("reproduce", "panel-a", "--records", "--scale", "paper"), ("records", "write", "panel-a"), ("report",)]
)
def test_where_nothing_was_measured_nothing_is_written(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "report.html").write_text("mine")
    assert "error: no" in tepo(*words, cwd=tmp_path, code=2).stderr
    assert (tmp_path / "report.html").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "runs"]
