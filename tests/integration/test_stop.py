"""A scheduler's SIGTERM and SIGUSR2 to real runs: one process, and two ranks under torchrun."""

import contextlib
import os
import pty
import runpy
import signal
import sys
from pathlib import Path

import pytest

from tepo.common import signals
from tepo.store.run_folder import RunFolder
from tests.integration.commands import Started, program, started, until
from tests.unit.training.small import SMALL, assert_same_run, few_problems, small

pytestmark = pytest.mark.disaster

STEPS = ("train.steps=12", "train.checkpoint_every=5")
RANKS = ("engine=deepspeed", "train.steps=16", "train.checkpoint_every=20", "train.max_rounds=4")


def ended(run: RunFolder, process: Started) -> str:
    """What a run said that was asked to stop: it has saved every step that it had finished."""
    done = process.end(code=None)
    assert run.manifest()["status"] == "interrupted", done.stderr
    assert run.checkpoints()[-1] == run.metrics()[-1]["training/global_step"]
    return done.stderr


def in_terminal(name: str, *words: str) -> None:
    """The command in the foreground of a terminal."""
    os.setsid()
    terminal = os.open(name, os.O_RDWR)
    for stream in range(3):
        os.dup2(terminal, stream)
    sys.stdout, sys.stderr = map(os.fdopen, (1, 2), "ww")  # those of before knew files
    sys.argv = ["tepo", *words]
    runpy.run_module("tepo_cli", run_name="__main__", alter_sys=True)


def test_a_run_whose_terminal_is_closed_saves_what_it_has(tmp_path: Path) -> None:
    """Its progress bar has nowhere to go then."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    run = RunFolder.of(small(tmp_path, *STEPS))
    process = Started(in_terminal, os.ttyname(theirs), "train", *SMALL, *STEPS, f"store={tmp_path}")

    def trained() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(ours, 1 << 16)
        return len(run.metrics()) >= 2

    until(trained, process)
    os.close(theirs)
    os.close(ours)
    ended(run, process)
    assert process.poll() == 75
    assert run.manifest()["error"] == "asked to stop (SIGHUP)"


@pytest.mark.deepspeed
def test_two_ranks_stop_alike(tmp_path: Path) -> None:
    """Asked through torchrun, which sends SIGTERM to all ranks; one rank alone asked. One that is killed, at which
    torchrun sends the same SIGTERM, is in test_kill_rank.py."""
    run = RunFolder.of(small(tmp_path / "stopped", *RANKS))

    def start(store: str) -> Started:
        torchrun = ("--nproc-per-node", "2", "--standalone", "-m", "tepo_cli")
        words = ("train", *SMALL, *RANKS, f"store={tmp_path / store}", "--quiet")
        return program("torch.distributed.run", *torchrun, *words)

    def start_and_train() -> tuple[Started, list[int]]:
        done = len(run.metrics())
        process = start("stopped")
        until(lambda: len(run.metrics()) > done, process)
        return process, signals._children(process.pid)

    process, _ = start_and_train()
    os.kill(process.pid, signal.SIGTERM)
    assert ended(run, process).count("asked to stop (SIGTERM)") == 2

    process, (_, other) = start_and_train()
    os.kill(other, signal.SIGUSR2)
    said = ended(run, process)
    assert said.count("asked to stop (SIGUSR2)") == 1
    assert said.count("asked to stop (another rank)") == 1

    for store in ("stopped", "undisturbed"):
        start(store).end()
    undisturbed = RunFolder.of(small(tmp_path / "undisturbed", *RANKS))
    assert_same_run(run.path, undisturbed.path)


def test_a_study_passes_the_request_on(tmp_path: Path) -> None:
    """The signal reaches the command that waits for its runs, which have sessions of their own."""
    own = few_problems(tmp_path)
    (tmp_path / "ablations").mkdir()
    words = ["scale=laptop", "model=laptop", "objective=grpo_dapo", "data.benchmarks=[max4]", *STEPS]
    text = "title: one\nrows: [{label: a, objective: grpo_dapo}]\nscales: {laptop: {models: [laptop], seeds: [0]}}\n"
    (tmp_path / "ablations" / "one.yaml").write_text(text)
    settings = [part for word in (*SMALL, *STEPS, "data.benchmarks=[max4]") for part in ("--set", word)]
    run = RunFolder.of(small(tmp_path / "runs", *words))
    process = started("ablate", "one", "--store", tmp_path / "runs", *settings, **own)
    until(lambda: len(run.metrics()) >= 2, process)
    os.kill(process.pid, signal.SIGTERM)
    assert "asked to stop (SIGTERM): finished steps are kept" in ended(run, process)
    assert process.poll() == 75
    assert "asked to stop (SIGUSR2)" in (run.path / "log.txt").read_text()
