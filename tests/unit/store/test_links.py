"""Nothing in a run's folder leads elsewhere: no command reads, writes or removes anything behind a link in it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.common.files import check_no_links, no_link, remove_leftovers
from tepo.config.compose import compose
from tepo.store.find_run import costs
from tepo.store.live_runs import live_runs
from tepo.store.run_folder import RunFolder
from tepo.studies.plan import Unit
from tepo_cli.main import main
from tests.support.runs import write
from tests.unit.store.test_store_check import WORDS, finished_run

SAID = "a symbolic link is in the way"
PLACES = [
    *("eval", "eval/add3/parts", "eval/add3/samples.parquet", "checkpoints/step_000002/model.safetensors"),
    *("config.json", "metrics.jsonl", "tokens/step_000002.json", ".train.lock", "wandb", "unknown"),
]


def tree(folder: Path) -> dict[str, bytes | str | None]:
    return {
        str(path): os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder with what every command that sweeps would take for its own."""
    folder = tmp_path / "precious"
    for name in ("parts/00000.parquet", ".samples.parquet.0123abcd", "step_000001/model.safetensors"):
        write(folder / name, "precious")
    return folder


def put_link(place: Path, target: Path) -> None:
    """In the place of what is there, which is kept beside the store."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        place.rename(target.with_name(f"was {place.name}"))
    place.symlink_to(target)


@pytest.mark.parametrize("place", PLACES)
def test_a_run_with_a_link_is_not_opened(place: str, own: Path, precious: Path, tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "store").folder.path
    kept = tree(precious)
    put_link(folder / place, precious)
    before = tree(folder)
    for ask in (RunFolder.manifest, RunFolder.lock, RunFolder.measured, RunFolder.token_dumps, RunFolder.costs):
        with pytest.raises(UserError, match=SAID) as caught:
            ask(RunFolder(folder))
        assert (caught.value.where, caught.value.exit_code) == (str(folder / place), 2)
    assert (tree(folder), tree(precious)) == (before, kept)


def test_a_whole_store_may_be_a_link_and_wandb_may_make_them(own: Path, tmp_path: Path) -> None:
    unit = finished_run(tmp_path / "disk")
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    (unit.folder.path / "wandb").mkdir()
    (unit.folder.path / "wandb" / "latest-run").symlink_to("offline-run-1")
    run = RunFolder(tmp_path / "runs" / unit.id)
    assert run.finished()
    run.lock().close()


SET = [part for word in WORDS for part in ("--set", word)]
COMMANDS: dict[str, Callable[[Unit], list[str]]] = {
    "train": lambda unit: ["train", *unit.overrides, "--evaluate", "--quiet"],
    "measure": lambda unit: ["eval", "-m", " ".join(["train", *unit.overrides])],
    "eval": lambda unit: ["eval", "-m", unit.id, "add3"],
    "regrade": lambda unit: ["data", "regrade", str(unit.folder.path / "eval" / "add3")],
    "responses": lambda unit: ["responses", unit.id, "add3"],
    "explain": lambda unit: ["explain", unit.id],
    **{name: lambda unit, name=name: [*name.split(), "mine", *SET] for name in ("ablate", "table", "records write")},
    "report": lambda unit: ["report", "mine", *SET, "--out", str(unit.folder.path.parents[1] / "page.html")],
}


def of_store(words: list[str], store: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["tepo", *words, "--store", str(store)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_it(
    name: str,
    own: Path,
    precious: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unit = finished_run(tmp_path / "store")
    put_link(unit.folder.path / "checkpoints", precious)
    monkeypatch.chdir(tmp_path)
    before = tree(tmp_path)
    code = of_store(COMMANDS[name](unit), tmp_path / "store", monkeypatch)
    said = " ".join(capsys.readouterr().err.split())
    assert SAID in said
    assert code == (1 if name == "measure" else 2)  # several runs: this one was not measured
    assert tree(tmp_path) == before


def test_lists_mark_it_and_go_on(
    own: Path, precious: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    unit = finished_run(store)
    for name in ("zz-inside", "zz-itself"):
        RunFolder(store / name).mark("finished")
    put_link(store / "zz-inside" / "eval", precious)
    put_link(store / "zz-itself", precious.with_name("elsewhere"))
    RunFolder(precious.with_name("elsewhere")).mark("finished")
    before = tree(tmp_path)
    assert of_store(["list", "--all"], store, monkeypatch) == 0
    shown = capsys.readouterr().out
    assert f"{unit.id} grpo_dapo laptop laptop 0 finished 2/2 1" in shown
    assert shown.count(f"unreadable: {SAID}") == 2
    assert of_store(["doctor", "--no-selftest"], store, monkeypatch) == 1
    assert capsys.readouterr().out.count(f"DAMAGED: {SAID}") == 2
    assert live_runs(store)[0].id == unit.id
    assert costs(store) == []
    assert tree(tmp_path) == before


def test_what_is_swept_is_not_swept_behind_a_link(precious: Path, tmp_path: Path) -> None:
    """Also where somebody put the link there after the run was opened."""
    run, kept = tmp_path / "run", tree(precious)
    (run / "checkpoints").mkdir(parents=True)
    for number, place in enumerate(("eval", "checkpoints/.step_000001", ".a.b.01234567")):
        (run / place).symlink_to(precious)
        half = run / f"checkpoints/.step_{number}" / "file"
        half.parent.mkdir()
        half.touch()
    remove_leftovers(run, ".*.*.????????", "checkpoints/.step_*", "eval/*/*", "eval/.*.*.????????")
    assert tree(precious) == kept
    assert sorted(path.name for path in run.rglob("*")) == ["checkpoints", "eval"]


def test_a_file_that_is_written_in_place_has_one_name(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    os.link(victim, tmp_path / "log.txt")
    for mode in ("a", "w"):
        with pytest.raises(OSError, match="Too many links"):
            open(tmp_path / "log.txt", mode, opener=no_link)  # noqa: SIM115
    assert victim.read_text() == "precious"
    check_no_links(tmp_path)  # to read it harms nobody


@pytest.mark.parametrize("words", [["eval", "-m", "base"], ["eval", "-m", "package:laptop", "add3"]])
def test_measurements_of_a_base(
    words: list[str],
    precious: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = RunFolder.of_base(compose([f"store={tmp_path / 'store'}"])).path
    put_link(run / "eval" / "add3", precious)
    before = tree(tmp_path)
    assert of_store(words, tmp_path / "store", monkeypatch) == 2
    assert SAID in " ".join(capsys.readouterr().err.split())
    assert tree(tmp_path) == before
