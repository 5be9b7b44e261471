import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tepo.store.run_folder import RunFolder
from tests.support.commands import ranks, until
from tests.support.runs import SMALL, small

STEPS = 40


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


def fill(store: Path) -> Path:
    """Somebody else's file, which leaves less than a checkpoint takes (about 2.5 MB)."""
    file = store / "filler"
    file.write_bytes(bytes(shutil.disk_usage(store).free - 1_000_000))
    return file


@pytest.mark.disaster
@pytest.mark.deepspeed
def test_a_disk_that_gets_full_ends_all_ranks_with_one_message(tmp_path: Path) -> None:
    words = ("engine=deepspeed", f"train.steps={STEPS}")
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
