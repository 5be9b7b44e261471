"""Mistakes that must be said before a command begins to work: called in this process, as a process each takes seconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tepo.errors import UserError
from tepo_cli.ablate import ablate
from tepo_cli.figure import figure
from tepo_cli.plan import plan
from tepo_cli.report import report
from tepo_cli.table import table
from tepo_cli.train import train

TYPO = "objective.penalty.coefficint=1"


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda store: train([TYPO, f"store={store}"]), "'coefficient'"),
        (lambda store: train([TYPO, f"store={store}"], dry_run=True), "'coefficient'"),
        (lambda store: train(["data.tasks.foo=1", f"store={store}"]), "unknown task 'foo'"),
        (lambda store: ablate("panel-e", store=store, override=["objective.surrogate.hgih=1"]), "row 'GRPO/DAPO'"),
        (lambda store: ablate("panel-e", store=store, override=["objective.surrogate.hgih=1"], dry_run=True), "row 'GRPO/DAPO'"),
        (lambda store: plan(["panel-e"], store=store, override=["objective.surrogate.hgih=1"]), "row 'GRPO/DAPO'"),
        (lambda store: ablate("panel-e", store=store, format="pdf"), "unknown format 'pdf'"),
        (lambda store: ablate("panel-e", store=store, launcher="slurn", dry_run=True), "'slurm'"),
        (lambda store: table("panel-e", store=store), "no store there"),
        (lambda store: figure("2a", store=store), "no store there"),
        (lambda store: report(["panel-e"], store=store), "no store there"),
    ],
)
def test_a_mistake_leaves_nothing_on_disk(call: Callable[[Path], Any], hint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        call(tmp_path / "runs")
    assert caught.value.exit_code == 2
    assert hint in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_tepo_path_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "typo"))
    with pytest.raises(UserError, match="no such folder"):
        table("panel-e", store=tmp_path)


def test_a_run_to_evaluate_that_is_not_there_or_not_whole(tmp_path: Path) -> None:
    from tepo_cli.evaluating import find_target

    (tmp_path / "0123456789ab").mkdir()
    (tmp_path / "0123456789ab" / "config.json").write_text("[]")
    for model in ("0123456789ac", str(tmp_path / "0123456789ac")):  # the network is not asked
        with pytest.raises(UserError, match="no model and no run"):
            find_target(model, tmp_path, None)
    with pytest.raises(UserError, match="did you mean '0123456789ab'"):
        find_target("0123456789ac", tmp_path, None)
    with pytest.raises(UserError, match="no model and no run"):
        find_target("runs/0123456789ac", Path("runs"), None)
    (tmp_path / "0123456789ab" / "checkpoints").mkdir()
    with pytest.raises(UserError, match="another version"):
        find_target("0123456789ab", tmp_path, None)
    (tmp_path / "0123456789ab" / "config.json").unlink()
    with pytest.raises(UserError, match="no configuration"):
        find_target("0123456789ab", tmp_path, None)


def test_a_store_that_is_a_file_is_one_message(tmp_path: Path) -> None:
    from tepo.files import write_atomic

    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "x.json", tmp_path / "file" / "deep" / "x.json"):
        with pytest.raises(UserError, match="cannot write: a "):
            write_atomic(path, "")
    with pytest.raises(UserError, match="a folder is in the way"):
        write_atomic(tmp_path, "")
