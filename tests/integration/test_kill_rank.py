"""A rank dies in the middle of a run: the others end with one message, and the run goes on, also on another number of
ranks. One of the runs trains an objective of the user's own."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tepo.store.run_folder import RunFolder
from tepo.training.distributed.liveness import SILENT
from tests.integration.commands import ranks, started, tepo, until
from tests.unit.training.small import SMALL, small

pytestmark = [pytest.mark.disaster, pytest.mark.deepspeed]

STEPS = 14  # twice three before a kill, and some more to go on with
WORDS = ("engine=deepspeed", f"train.steps={STEPS}", "train.checkpoint_every=2", "train.max_rounds=4")
OWN = Path(__file__).parents[2] / "examples" / "own_method"
BOUND = SILENT + 60  # seconds until the other rank has ended by itself, without a launcher


def kill(store: Path, run: RunFolder, rank: int, extra: tuple[str, ...]) -> str:
    """Start two ranks, kill one once three more steps are done, and return what the other one said."""
    done = len(run.metrics())
    both = ranks("tepo_cli", "train", *SMALL, *WORDS, *extra, f"store={store}", "--quiet")
    until(lambda: len(run.metrics()) >= done + 3, both[0])
    assert [process.poll() for process in both] == [None, None], [process.end() for process in both]
    both[rank].kill()
    ended = both[1 - rank].end(BOUND, code=1)
    assert f"rank {rank} (process {both[rank].pid} on {socket.gethostname()}) is missing since 20" in ended.stderr
    return ended.stderr


@pytest.mark.parametrize("extra", [("objective=my_spo",), ("train.staleness=1",)], ids=["own formula", "stale"])
def test_the_others_end_and_the_run_goes_on(
    tmp_path: Path, extra: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEPO_PATH", str(OWN))
    run = RunFolder.of(small(tmp_path / "killed", *WORDS, *extra))
    errors = kill(tmp_path / "killed", run, 1, extra)
    assert "error: rank 0 of 2: " in errors
    assert "the same command goes on from the last checkpoint" in errors
    assert run.manifest()["status"] == "failed"
    assert "rank 0 of 2" in run.manifest()["error"]
    kept = [row for row in run.metrics() if row["training/global_step"] <= run.checkpoints()[-1]]
    errors = kill(tmp_path / "killed", run, 0, extra)
    assert "error: rank 1 of 2: " in errors
    assert run.metrics()[: len(kept)] == kept  # it went on from the checkpoint
    assert 0 < run.checkpoints()[-1] < STEPS

    for store in ("killed", "whole"):  # two ranks' checkpoint goes on alone
        tepo("train", *SMALL, *WORDS, *extra, f"store={tmp_path / store}", "--quiet")
    whole = RunFolder.of(small(tmp_path / "whole", *WORDS, *extra))
    assert [row["training/prompts"] for row in run.metrics()] == [row["training/prompts"] for row in whole.metrics()]
    for one, other in zip(run.metrics(), whole.metrics(), strict=True):
        assert one["critic/score/mean"] == pytest.approx(other["critic/score/mean"])
        assert one["actor/grad_norm"] == pytest.approx(other["actor/grad_norm"], rel=1e-2)
    one, other = (
        torch.cat(
            [value.flatten() for _, value in sorted(load_file(each.checkpoint(STEPS) / "model.safetensors").items())]
        )
        for each in (run, whole)
    )
    assert (one - other).norm() < 1e-3 * other.norm()


def launched(store: Path) -> "subprocess.Popen[str]":
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tepo_cli"]
    words = [*start, "train", *SMALL, *WORDS, f"store={store}", "--quiet"]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_under_a_launcher_the_lost_rank_is_named_and_the_run_goes_on(tmp_path: Path, number: int) -> None:
    """A killed rank breaks its connections. Those of a stopped one stay open: only its signs of life end."""
    run = RunFolder.of(small(tmp_path, *WORDS))
    with launched(tmp_path) as launcher:
        while len(run.metrics()) < 3:
            assert launcher.poll() is None, launcher.communicate()[1]
            time.sleep(0.02)
        lost = json.loads((run.path / "ranks" / "rank_00001.json").read_text())["pid"]
        os.kill(lost, number)
        begin = time.monotonic()
        _, errors = launcher.communicate(timeout=BOUND + 60)  # the launcher waits for 30 s before it kills
    assert launcher.returncode != 0
    # the launcher's SIGTERM may come before the connection is seen to be broken
    why = "" if number == signal.SIGSTOP else "(the connection |ended from outside)"
    assert re.search(f"error: rank 0 of 2: {why}", errors), errors
    assert f"rank 1 (process {lost} on {socket.gethostname()}) is missing since 20" in errors
    assert "asked to stop" not in errors
    assert "the same command goes on from the last checkpoint" in errors
    assert run.manifest()["status"] == "failed"
    assert "is missing since 20" in run.manifest()["error"]
    assert (time.monotonic() - begin > SILENT) == (number == signal.SIGSTOP)
    assert 0 < run.checkpoints()[-1] < STEPS
    kept = [row for row in run.metrics() if row["training/global_step"] <= run.checkpoints()[-1]]
    with launched(tmp_path) as launcher:
        _, errors = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, errors
    rows = run.metrics()
    assert rows[: len(kept)] == kept
    assert len(rows) == STEPS
    assert all(row["perf/slowest_rank"] in (0.0, 1.0) and row["perf/slowest_rank_lag_s"] >= 0 for row in rows)
    assert not (run.path / "ranks").exists()
    assert list((run.path / "checkpoints").iterdir()) == [run.checkpoint(STEPS)]


def test_ranks_that_read_different_files_train_nothing(tmp_path: Path) -> None:
    """As on two machines whose copies of a file differ, or when it is edited while the ranks start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    both = []
    for rank, width in enumerate(("0.2", "0.3")):
        shutil.copytree(OWN, tmp_path / str(rank))
        row = tmp_path / str(rank) / "objective" / "my_spo.yaml"
        row.write_text(row.read_text().replace("value: 0.2", f"value: {width}"))
        words = (*SMALL, *WORDS, "objective=my_spo", f"store={tmp_path / 'runs'}", "--quiet")
        where = {"TEPO_PATH": str(row.parents[1]), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        both.append(started("train", *words, **shared, **where))
    for done in [one.end(120, code=1) for one in both]:
        assert "the ranks read different files (rank 0: run " in done.stderr
    assert not list((tmp_path / "runs").glob("*/metrics.jsonl"))
