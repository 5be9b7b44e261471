"""Nothing in a run's folder leads elsewhere: no command reads, writes or removes anything behind a link in it."""

import os
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.common.files import check_no_links, no_link, remove_leftovers
from tepo.config.compose import compose
from tepo.store.find_run import costs
from tepo.store.live_runs import live_runs
from tepo.store.run_folder import RunFolder
from tests.support.runs import write
from tests.unit.store.conftest import COMMANDS, Command, finished_run, tree

SAID = "a symbolic link is in the way"
PLACES = [
    *("eval", "eval/add3/parts", "eval/add3/samples.parquet", "checkpoints/step_000002/model.safetensors"),
    *("config.json", "metrics.jsonl", "tokens/step_000002.json", ".train.lock", "wandb", "unknown"),
]


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


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_it(name: str, own: Path, precious: Path, tmp_path: Path, command: Command) -> None:
    unit = finished_run(tmp_path / "store")
    put_link(unit.folder.path / "checkpoints", precious)
    before = tree(tmp_path)
    code, said = command(*COMMANDS[name](unit))
    assert SAID in said
    assert code == (1 if name == "measure" else 2)  # several runs: this one was not measured
    assert tree(tmp_path) == before


@pytest.mark.parametrize("words", [["base"], ["package:laptop", "add3"]])
def test_measurements_of_a_base(words: list[str], precious: Path, tmp_path: Path, command: Command) -> None:
    put_link(RunFolder.of_base(compose([f"store={tmp_path / 'store'}"])).path / "eval" / "add3", precious)
    before = tree(tmp_path)
    code, said = command("eval", "-m", *words)
    assert (code, SAID in said, tree(tmp_path)) == (2, True, before)


def test_lists_mark_it_and_go_on(own: Path, precious: Path, tmp_path: Path, command: Command) -> None:
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    unit = finished_run(store)
    for folder in (store / "zz-inside", elsewhere):
        RunFolder(folder).mark("finished")
    put_link(store / "zz-inside" / "eval", precious)
    put_link(store / "zz-itself", elsewhere)
    before = tree(tmp_path)
    code, shown = command("list", "--all")
    assert code == 0
    assert f"{unit.id} grpo_dapo laptop laptop 0 finished 2/2 1" in shown
    assert shown.count(f"unreadable: {SAID}") == 2
    code, shown = command("doctor", "--no-selftest")
    assert (code, shown.count(f"DAMAGED: {SAID}")) == (1, 2)
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
