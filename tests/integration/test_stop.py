"""A terminal that is closed, and a scheduler's SIGTERM to a study. Two ranks under torchrun: test_kill_rank.py."""

import contextlib
import os
import pty
import runpy
import signal
import sys
from pathlib import Path

import pytest

from tepo.store.run_folder import RunFolder
from tests.support.commands import Started, started, until
from tests.support.runs import SMALL, few_problems, small

pytestmark = pytest.mark.disaster

STEPS = ("train.steps=12", "train.checkpoint_every=5")


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
