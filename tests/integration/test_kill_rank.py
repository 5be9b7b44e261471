import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tepo.store.run_folder import RunFolder
from tepo.training.distributed.liveness import SILENT
from tests.support.commands import Started, free_port, program, ranks, started, tepo, until
from tests.support.processes import runs
from tests.support.runs import SMALL, assert_same_run, small, write

pytestmark = [pytest.mark.disaster, pytest.mark.deepspeed]

STEPS = 8  # three before a kill, and some more to go on with
WORDS = ("engine=deepspeed", f"train.steps={STEPS}", "train.checkpoint_every=2", "train.max_rounds=4")
LAUNCHED = ("engine=deepspeed", "train.steps=10", "train.checkpoint_every=20", "train.max_rounds=4")
OWN = Path(__file__).parents[2] / "examples" / "own_method"
SOON = 30.0  # in place of SILENT


def test_the_other_ends_and_the_run_goes_on_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an objective of the user's own, on rollouts of the step before, without a launcher. The first rank is lost:
    the second, below."""
    monkeypatch.setenv("TEPO_PATH", str(OWN))
    words = (*WORDS, "objective=my_spo", "train.staleness=1")
    run = RunFolder.of(small(tmp_path / "killed", *words))
    both = ranks("tepo_cli", "train", *SMALL, *words, f"store={run.path.parent}", "--quiet")
    until(lambda: len(run.metrics()) >= 3, both[0])
    assert [process.poll() for process in both] == [None, None], [process.end() for process in both]
    both[0].kill()
    errors = both[1].end(SILENT + 60, code=1).stderr
    assert f"rank 0 (process {both[0].pid} on {socket.gethostname()}) is missing since 20" in errors
    assert "error: rank 1 of 2: " in errors
    assert 0 < run.checkpoints()[-1] < STEPS
    kept = [row for row in run.metrics() if row["training/global_step"] <= run.checkpoints()[-1]]
    for store in ("killed", "whole"):  # two ranks' checkpoint goes on alone
        tepo("train", *SMALL, *words, f"store={tmp_path / store}", "--quiet")
    assert run.metrics()[: len(kept)] == kept
    whole = RunFolder.of(small(tmp_path / "whole", *words))
    assert [row["training/prompts"] for row in run.metrics()] == [row["training/prompts"] for row in whole.metrics()]
    for one, other in zip(run.metrics(), whole.metrics(), strict=True):
        assert one["critic/score/mean"] == pytest.approx(other["critic/score/mean"])
        assert one["actor/grad_norm"] == pytest.approx(other["actor/grad_norm"], rel=1e-2)
    files = [load_file(each.checkpoint(STEPS) / "model.safetensors") for each in (run, whole)]
    one, other = (torch.cat([file[name].flatten() for name in sorted(file)]) for file in files)
    assert (one - other).norm() < 1e-3 * other.norm()


def test_under_a_launcher_ranks_stop_alike_and_a_lost_one_is_named(tmp_path: Path) -> None:
    """Asked to stop through torchrun, which sends SIGTERM to all ranks (one rank alone: test_slurm.py); then one is
    killed, which breaks its connections, and one is stopped, whose connections stay open: only its signs of life end.
    The run ends with the bits of an undisturbed one."""
    run = RunFolder.of(small(tmp_path / "disturbed", *LAUNCHED))
    write(tmp_path / "sitecustomize.py", f"from tepo.training.distributed import liveness\nliveness.SILENT = {SOON}\n")

    def launched(store: str, **environment: str) -> Started:
        torchrun = ("--nproc-per-node", "2", "--standalone", "-m", "tepo_cli")
        words = ("train", *SMALL, *LAUNCHED, f"store={tmp_path / store}", "--quiet")
        return program("torch.distributed.run", *torchrun, *words, **environment)

    def pid(rank: int) -> int:
        return int(json.loads((run.path / "ranks" / f"rank_{rank:05}.json").read_text())["pid"])

    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        done = len(run.metrics())
        process = launched("disturbed", PYTHONPATH=str(tmp_path))
        until(lambda done=done: len(run.metrics()) > done, process)  # it has gone on for a step
        assert process.poll() is None, process.end(code=None)
        first, other = pid(0), pid(1)
        if number == signal.SIGTERM:
            os.kill(process.pid, number)
            errors = process.end(code=None).stderr
            assert re.findall(r"asked to stop (\(.*?\))", errors) == ["(SIGTERM)"] * 2, errors
            assert run.manifest()["status"] == "interrupted"
            assert run.checkpoints()[-1] == run.metrics()[-1]["training/global_step"]  # every step that was finished
            continue
        os.kill(other, number)
        until(lambda first=first: not runs(first), process, SILENT + 60)
        with contextlib.suppress(ProcessLookupError):
            os.kill(other, signal.SIGKILL)  # else the launcher waits for 30 s before it does
        errors = process.end(60, code=1).stderr
        # the launcher's SIGTERM may come before the connection is seen to be broken
        why = "" if number == signal.SIGSTOP else "(the connection |ended from outside)"
        assert re.search(f"error: rank 0 of 2: {why}", errors), errors
        assert f"rank 1 (process {other} on {socket.gethostname()}) is missing since 20" in errors
        assert "the same command goes on from the last checkpoint" in errors
        assert run.manifest()["status"] == "failed"
        assert "is missing since 20" in run.manifest()["error"]
        assert (f"given up after {SOON:.0f} s" in errors) == (number == signal.SIGSTOP), errors

    for store in ("disturbed", "whole"):
        launched(store).end()
    assert_same_run(run.path, RunFolder.of(small(tmp_path / "whole", *LAUNCHED)).path)
    assert not (run.path / "ranks").exists()
    assert list((run.path / "checkpoints").iterdir()) == [run.checkpoint(len(run.metrics()))]


def test_ranks_that_read_different_files_train_nothing(tmp_path: Path) -> None:
    """As on two machines whose copies of a file differ, or when it is edited while the ranks start."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    both = []
    for rank, width in enumerate(("0.2", "0.3")):
        shutil.copytree(OWN, tmp_path / str(rank))
        row = tmp_path / str(rank) / "objective" / "my_spo.yaml"
        row.write_text(row.read_text().replace("value: 0.2", f"value: {width}"))
        words = (*SMALL, *WORDS, "objective=my_spo", f"store={tmp_path / 'runs'}", "--quiet")
        where = {"TEPO_PATH": str(row.parents[1]), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        both.append(started("train", *words, **shared, **where))
    for done in [one.end(120, code=1) for one in both]:
        assert "the ranks are not of one run (rank 0: run " in done.stderr
    assert not list((tmp_path / "runs").glob("*/metrics.jsonl"))


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


def test_a_disk_that_gets_full_ends_all_ranks_with_one_message(tmp_path: Path) -> None:
    words = ("engine=deepspeed", "train.steps=40")
    with mounted(tmp_path / "small", "size=24m") as store:
        run = RunFolder.of(small(store, *words))
        both = ranks("tepo_cli", "train", *SMALL, *words, f"store={store}", "-q")
        until(run.checkpoints, both[0])
        filler = store / "filler"  # somebody else's file, which leaves less than a checkpoint takes (about 2.5 MB)
        filler.write_bytes(bytes(shutil.disk_usage(store).free - 1_000_000))
        for done in [one.end(code=1) for one in both]:
            assert "the disk is full" in done.stderr
            assert "Traceback" not in done.stderr
        assert 0 < run.checkpoints()[-1] < 40
        assert not run.unfinished()
        assert "the disk is full" in run.manifest()["error"]
        filler.unlink()
        for one in ranks("tepo_cli", "train", *SMALL, *words, f"store={store}", "-q"):
            one.end()
        assert run.checkpoints() == [40]
