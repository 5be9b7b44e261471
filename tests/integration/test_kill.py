"""A run that is killed, whose terminal is closed, or whose study is asked to stop, and studies that race. Ranks:
test_kill_rank.py."""

import contextlib
import os
import pty
import random
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tepo.common import provenance
from tepo.store.checkpoint_files import damage
from tepo.store.run_folder import RunFolder
from tests.support.commands import OwnSignal, Started, sharing, started, until
from tests.support.runs import SMALL, assert_same_run, few_problems, small, write

pytestmark = pytest.mark.disaster

STEPS = "train.steps=9"


def start(store: Path, *words: str, own_signal: OwnSignal | None = None) -> Started:
    return started("train", *SMALL, STEPS, *words, f"store={store}", "--quiet", own_signal=own_signal)


STALE = ("train.staleness=2", "sampler.margin=2")
BEST = ("train.keep_best=true", "train.validate_every=1", "train.validation_problems=2", "data.benchmarks=[add3]")
EIGHT_BIT = ("engine.optimizer=adamw_8bit",)
ADAPTERS = ("model.lora_rank=4", "model.dtype=bfloat16")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((*STALE, *EIGHT_BIT), id="stale, 8-bit", marks=pytest.mark.bitsandbytes),
        pytest.param((*BEST, *ADAPTERS), id="best, adapters", marks=pytest.mark.peft),
    ],
)
def test_two_kills_change_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    draw = random.Random(7)
    run = RunFolder.of(small(tmp_path / "killed", STEPS, *words))
    for _ in range(2):
        # about twenty files change from step to step: twice in two steps of nine
        a_step_later = OwnSignal(signal.SIGKILL, run.path, "open */metrics.jsonl", draw.randrange(1, 40))
        start(tmp_path / "killed", *words, own_signal=a_step_later).end(code=-signal.SIGKILL)
        assert not run.finished()
    for store in ("killed", "whole"):
        start(tmp_path / store, *words).end()
    other = RunFolder.of(small(tmp_path / "whole", STEPS, *words))
    assert_same_run(run.path, other.path)
    (whole_session,), sessions = provenance.sessions(other.path), provenance.sessions(run.path)
    assert sessions[0]["ended"] is None  # killed
    assert sessions[-1]["ended"]
    assert {session["commit"] for session in sessions} == {whole_session["commit"]}


STOPPED = ("train.steps=12", "train.checkpoint_every=5")


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
    run = RunFolder.of(small(tmp_path, *STOPPED))
    process = Started(in_terminal, os.ttyname(theirs), "train", *SMALL, *STOPPED, f"store={tmp_path}")

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
    words = ["scale=laptop", "model=laptop", "objective=grpo_dapo", "data.benchmarks=[max4]", *STOPPED]
    text = "title: one\nrows: [{label: a, objective: grpo_dapo}]\nscales: {laptop: {models: [laptop], seeds: [0]}}\n"
    write(tmp_path / "ablations/one.yaml", text)
    settings = [part for word in (*SMALL, *STOPPED, "data.benchmarks=[max4]") for part in ("--set", word)]
    run = RunFolder.of(small(tmp_path / "runs", *words))
    process = started("ablate", "one", "--store", tmp_path / "runs", *settings, **own)
    until(lambda: len(run.metrics()) >= 2, process)
    os.kill(process.pid, signal.SIGTERM)
    assert "asked to stop (SIGTERM): finished steps are kept" in ended(run, process)
    assert process.poll() == 75
    assert "asked to stop (SIGUSR2)" in (run.path / "log.txt").read_text()


STUDY = """\
title: three rows
rows:
  - {label: a, objective: grpo_dapo}
  - {label: b, objective: tepo_no_kl}
  - {label: c, objective: gspo}
scales:
  laptop: {models: [laptop], seeds: [0], overrides: [%s]}
"""


def lineage(pid: int, parents: dict[int, int]) -> list[int]:
    found = [pid]
    while found[-1] in parents:
        found.append(parents[found[-1]])
    return found


def test_four_racing_processes_and_one_killed(tmp_path: Path) -> None:
    own = few_problems(tmp_path)
    write(tmp_path / "ablations/raced.yaml", STUDY % ", ".join([*SMALL, "'data.benchmarks=[max4]'"]))
    words = ("ablate", "raced", "--store", tmp_path / "runs", "--format", "csv")
    # the one that is killed has its units forked by a server of its own, as a user's command has
    processes = [started(*words, **own), *(sharing(*words, **own) for _ in range(3))]
    until(lambda: list((tmp_path / "runs").glob("*/metrics.jsonl")), processes[0])
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    lines = listed.splitlines()
    parents = dict(tuple(map(int, line.split())) for line in lines)
    for pid in parents:
        if processes[0].pid in lineage(pid, parents):  # what trains for it does so in a session of its own
            with contextlib.suppress(ProcessLookupError):  # it ended with the one that was killed before it
                os.kill(pid, signal.SIGKILL)
    codes = (-signal.SIGKILL, 0, 0, 0)
    ended = [process.end(code=code) for process, code in zip(processes, codes, strict=True)]
    assert len({each.stdout for each in ended[1:]}) == 1
    runs = [RunFolder(path.parent) for path in (tmp_path / "runs").glob("*/config.json")]
    assert len(runs) == 3
    for run in runs:
        assert run.finished()
        assert [row["training/global_step"] for row in run.metrics()] == [1, 2, 3]
        assert all(not damage(run.checkpoint(step)) for step in run.checkpoints())
