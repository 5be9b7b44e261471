import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tepo.common.errors import BUSY, UserError
from tepo.common.files import commit_folder, exclusive, write_atomic, write_json
from tepo.launch.forkserver import job_environment, start
from tepo.store.run_folder import RunFolder
from tepo.store.samples_file import read_table
from tepo.training.distributed.liveness import Heartbeat
from tests.support.commands import python


@contextmanager
def elsewhere(block: str) -> Iterator[None]:
    """Another process, in a block of its own."""
    code = (
        "import sys; from pathlib import Path; from tepo.common.files import exclusive; "
        f"from tepo.store.run_folder import RunFolder\nwith {block}: print('in', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as other:
        assert other.stdout
        assert other.stdout.readline() == "in\n"
        yield
        other.communicate("")


def test_a_file_system_without_locks_is_no_busy_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says on an NFS without its lock service."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", fail)
    for ask in (RunFolder(tmp_path).lock, RunFolder(tmp_path).busy):
        with pytest.raises(UserError, match="does not lock files") as caught:
            ask()
        assert caught.value.exit_code == 1


def test_a_held_lock_is_busy_until_it_is_given_back(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with elsewhere(f"RunFolder(Path({str(tmp_path)!r})).lock('measure')"):
        assert run.busy()
        run.lock("train").close()
        with pytest.raises(UserError, match=r"another process has this run \(measure\)") as caught:
            run.lock("measure")
        assert caught.value.exit_code == BUSY
    assert not run.busy()


def test_one_process_at_a_time_writes_a_folder(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with elsewhere(f"exclusive(Path({str(target)!r}))"):
        for block in (exclusive(target), commit_folder(target)):
            with pytest.raises(UserError, match="another process writes this") as caught, block:
                pass
            assert caught.value.exit_code == BUSY
    with commit_folder(target) as scratch:
        (scratch / "file").touch()
    assert list(tmp_path.rglob("*")) == [target, target / "file"]


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    """As a run from elsewhere could hold them: to a key, or to somebody else's results."""
    victim, run = tmp_path / "victim", RunFolder(tmp_path / "run")
    victim.write_text("precious")
    (run.path / "ranks").mkdir(parents=True)
    heartbeat = Heartbeat(run.path / "ranks", 0, 2)
    places = (run.path / ".train.lock", run.path / ".measure.lock", run.metrics_file, run.log, heartbeat.file(0))
    for place in places:
        place.symlink_to(victim)
    for write in (
        run.lock,
        lambda: run.lock("measure"),
        lambda: run.append_metrics({"training/global_step": 1}),
        lambda: start([sys.executable, "-c", "print('log')"], run.log, job_environment()),
    ):
        with pytest.raises(UserError, match="a symbolic link is in the way"):
            write()
    with heartbeat:
        pass
    assert victim.read_text() == "precious"


def test_files_and_folders_have_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "value.json", {})
        with commit_folder(tmp_path / "folder") as scratch:
            write_atomic(scratch / "file", "")
        RunFolder(tmp_path / "run").lock().close()
    finally:
        os.umask(before)
    rights = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    files = dict.fromkeys(("value.json", "file", ".train.lock"), 0o640)
    assert rights == files | dict.fromkeys(("folder", "run"), 0o750)


def test_a_file_that_is_swept_while_it_is_written_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's costs and its card are written without a lock."""
    sync, swept = os.fsync, []

    def sweep(handle: int) -> None:
        sync(handle)
        if not swept:
            swept.extend(tmp_path.iterdir())
            RunFolder(tmp_path).lock("measure").close()
            assert not swept[0].exists()

    monkeypatch.setattr(os, "fsync", sweep)
    write_json(tmp_path / "cost.json", [1])
    assert swept
    assert sorted(path.name for path in tmp_path.iterdir()) == [".measure.lock", "cost.json"]


KILLED = """
import os, sys; from pathlib import Path; from tepo.common.files import commit_folder
target, unlink = Path(sys.argv[1]), os.unlink
def kill(*path, **where):
    unlink(*path, **where)
    os.kill(os.getpid(), 9)
for number in range(2):
    with commit_folder(target) as scratch:
        for name in "ab":
            (scratch / name).write_text(str(number))
        if sys.argv[2] == "write":
            kill(scratch / "a")
        os.unlink = kill if number else unlink
"""


@pytest.mark.parametrize("when", ["write", "remove"])
def test_a_folder_that_was_cut_off_goes_with_the_next_one(when: str, tmp_path: Path) -> None:
    """Killed while the new folder is written, or while the one before is removed."""
    target = tmp_path / "target"
    python("-c", KILLED, target, when, code=-signal.SIGKILL)
    assert len(list(tmp_path.glob(".target.????????"))) == 1
    assert when == "write" or sorted(path.read_text() for path in target.iterdir()) == ["1", "1"]
    (tmp_path / ".target.template").mkdir()  # a user's
    with commit_folder(target) as scratch:
        (scratch / "a").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".target.template", "target"]


def test_a_bomb_is_one_sentence(tmp_path: Path) -> None:
    bomb = pa.DictionaryArray.from_arrays(pa.array([0] * 9000, pa.int32()), ["x" * 2**20])  # a text again and again
    pq.write_table(pa.table({"problem": bomb}), path := tmp_path / "samples.parquet", compression="zstd")
    assert path.stat().st_size < 2**20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"not a readable Parquet file: holds .* more than is read") as refused:
        read_table(path)
    assert refused.value.where == str(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB
