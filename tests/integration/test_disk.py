import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tepo.store.run_folder import RunFolder
from tests.support.commands import ranks, tepo, until
from tests.support.runs import SMALL, small

STEPS = 40
LONG = (f"train.steps={STEPS}",)


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


def train(store: Path, *words: str, code: int = 0) -> str:
    """What it says on its way to this exit code."""
    return " ".join(tepo("train", *SMALL, *words, f"store={store}", "-q", code=code).stderr.split())


def fill(store: Path) -> Path:
    """Somebody else's file, which leaves less than a checkpoint takes (about 2.5 MB)."""
    file = store / "filler"
    file.write_bytes(bytes(shutil.disk_usage(store).free - 1_000_000))
    return file


def test_a_disk_that_is_too_small_is_said_before_anything_starts(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=3800k") as store:
        assert "the disk has 0.00389 GB free, checkpoints take" in train(store, code=2)
        assert not list(store.iterdir())


@pytest.mark.disaster
@pytest.mark.deepspeed
def test_a_disk_that_gets_full_ends_all_ranks_with_one_message(tmp_path: Path) -> None:
    words = ("engine=deepspeed", *LONG)
    with mounted(tmp_path / "small", "size=24m") as store:
        run = RunFolder.of(small(store, *words))
        both = ranks("tepo_cli", "train", *SMALL, *words, f"store={store}", "-q")
        until(run.checkpoints, both[0])
        filler = fill(store)
        for done in [one.end(code=1) for one in both]:
            assert "the disk is full" in done.stderr
            assert "Traceback" not in done.stderr
        assert 0 < run.checkpoints()[-1] < STEPS
        assert not run.unfinished()
        assert "the disk is full" in run.manifest()["error"]
        filler.unlink()
        both = ranks("tepo_cli", "train", *SMALL, *words, f"store={store}", "-q")
        for one in both:
            one.end()
        assert run.checkpoints() == [STEPS]


def test_a_read_only_store_is_one_message(tmp_path: Path) -> None:
    if os.geteuid() != 0:  # root writes anywhere but on a read-only mount
        (tmp_path / "store").mkdir(mode=0o555)
        said = train(tmp_path / "store", code=1)
        assert "no permission to write" in said
    else:
        with mounted(tmp_path / "store", "ro") as store:
            said = train(store, code=1)
        assert "the file system is read-only" in said
    assert "Traceback" not in said
