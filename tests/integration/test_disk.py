"""A full or read-only disk: one message, exit code 1, and what was finished stays good.
Real file systems, no patched calls."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.commands import ranks, tepo
from tests.unit.training.small import SMALL, small


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system of its own; skips where mounting is not allowed."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def train(store: Path) -> "subprocess.CompletedProcess[str]":
    return tepo("train", *SMALL, f"store={store}", "-q")


@pytest.mark.slow
def test_a_full_disk_keeps_the_finished_steps_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    from tepo.training.checkpoint import complete
    from tepo.training.run_folder import RunFolder

    with mounted(
        tmp_path / "small", "size=3800k"
    ) as store:  # a checkpoint is about 2.5 MB: the first fits, the second does not
        done = train(store)
        assert done.returncode == 1, done.stderr
        assert "the disk is full" in done.stderr
        assert "Traceback" not in done.stderr
        run = RunFolder.of(small(store))
        assert run.checkpoints() == [1]
        assert complete(run.checkpoint(1))
        subprocess.run(["mount", "-o", "remount,size=64m", str(store)], check=True)
        assert train(store).returncode == 0
        assert run.finished()


@pytest.mark.slow
@pytest.mark.deepspeed
def test_a_full_disk_ends_all_ranks_with_one_message(tmp_path: Path) -> None:
    from tepo.training.run_folder import RunFolder

    words = ("engine=deepspeed", "train.steps=8")
    with mounted(tmp_path / "small", "size=3800k") as store:
        both = ranks("tepo_cli", "train", *SMALL, *words, f"store={store}", "-q")
        for done in [one.end(200) for one in both]:
            assert done.returncode == 1, done.stderr
            assert "the disk is full" in done.stderr
            assert "Traceback" not in done.stderr
        run = RunFolder.of(small(store, *words))
        assert run.checkpoints() == [1]
        assert not run.unfinished()
        assert "the disk is full" in run.manifest()["error"]
        subprocess.run(["mount", "-o", "remount,size=64m", str(store)], check=True)
        both = ranks("tepo_cli", "train", *SMALL, *words, f"store={store}", "-q")
        assert [one.end(200).returncode for one in both] == [0, 0]
        assert run.checkpoints() == [8]


def test_a_read_only_store_is_one_message(tmp_path: Path) -> None:
    if os.geteuid() != 0:  # root writes anywhere but on a read-only mount
        (tmp_path / "store").mkdir(mode=0o555)
        done = train(tmp_path / "store")
        assert "no permission to write" in done.stderr
    else:
        with mounted(tmp_path / "store", "ro") as store:
            done = train(store)
        assert "the file system is read-only" in done.stderr
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
