"""A run that is killed, whose terminal is closed or whose study is asked to stop; studies that race."""

import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from tepo.common import provenance
from tepo.store.checkpoint_files import damage
from tepo.store.run_folder import RunFolder
from tests.support.commands import OwnSignal, Terminal, sharing, started, tepo, until
from tests.support.processes import descendants
from tests.support.runs import SMALL, assert_same_run, few_problems, small, write_study

pytestmark = pytest.mark.disaster

STEPS = "train.steps=9"
STALE = ("train.staleness=2", "sampler.margin=2")
BEST = ("train.keep_best=true", "train.validate_every=1", "train.validation_problems=2", "data.benchmarks=[add3]")
ADAPTERS = ("model.lora_rank=4", "model.dtype=bfloat16")
KILLED = [
    pytest.param((*STALE, "engine.optimizer=adamw_8bit"), id="stale, 8-bit", marks=pytest.mark.bitsandbytes),
    pytest.param((*BEST, *ADAPTERS), id="best, adapters", marks=pytest.mark.peft),
]


@pytest.mark.parametrize("words", KILLED)
def test_two_kills_change_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    draw, line = random.Random(7), ("train", *SMALL, STEPS, *words, "--quiet")
    run = RunFolder.of(small(tmp_path / "killed", STEPS, *words))
    for _ in range(2):
        # about twenty files change from step to step: twice in two steps of nine
        a_step_later = OwnSignal(signal.SIGKILL, run.path, "open */metrics.jsonl", draw.randrange(1, 40))
        started(*line, f"store={tmp_path / 'killed'}", own_signal=a_step_later).end(code=-signal.SIGKILL)
        assert not run.finished()
    for store in ("killed", "whole"):
        tepo(*line, f"store={tmp_path / store}")
    other = RunFolder.of(small(tmp_path / "whole", STEPS, *words))
    assert_same_run(run.path, other.path)
    (whole_session,), sessions = provenance.sessions(other.path), provenance.sessions(run.path)
    assert sessions[0]["ended"] is None  # killed
    assert sessions[-1]["ended"]
    assert {session["commit"] for session in sessions} == {whole_session["commit"]}


STOPPED = ("train.steps=1000", "train.checkpoint_every=5")


def assert_saved(run: RunFolder) -> None:
    """All steps that it had finished, when it was asked to stop."""
    assert run.manifest()["status"] == "interrupted"
    assert run.checkpoints()[-1] == run.metrics()[-1]["training/global_step"]


def test_a_run_whose_terminal_is_closed_saves_what_it_has(tmp_path: Path) -> None:
    """Its progress bar has nowhere to go then."""
    run = RunFolder.of(small(tmp_path, *STOPPED))
    terminal = Terminal("train", *SMALL, *STOPPED, f"store={tmp_path}", TERM="xterm")
    terminal.read_until(lambda: len(run.metrics()) >= 2)
    terminal.close()
    assert terminal.process.exitcode == 75
    assert_saved(run)
    assert run.manifest()["error"] == "asked to stop (SIGHUP)"


def test_a_study_passes_the_request_on(tmp_path: Path) -> None:
    """The signal reaches the command that waits for its runs, which have sessions of their own."""
    own = few_problems(tmp_path)
    words = [*STOPPED, "data.benchmarks=[max4]"]
    write_study(tmp_path, "one", {"a": "grpo_dapo"}, *SMALL, *words)
    run = RunFolder.of(small(tmp_path / "runs", "scale=laptop", "model=laptop", "objective=grpo_dapo", *words))
    process = started("ablate", "one", "--store", tmp_path / "runs", **own)
    until(lambda: len(run.metrics()) >= 2, process)
    os.kill(process.pid, signal.SIGTERM)
    assert "asked to stop (SIGTERM): finished steps are kept" in process.end(code=75).stderr
    assert_saved(run)
    assert "asked to stop (SIGUSR2)" in (run.path / "log.txt").read_text()


def test_four_racing_processes_and_one_killed(tmp_path: Path) -> None:
    own = few_problems(tmp_path)
    rows = {"a": "grpo_dapo", "b": "tepo_no_kl", "c": "gspo"}
    write_study(tmp_path, "raced", rows, *SMALL, "data.benchmarks=[max4]")
    words = ("ablate", "raced", "--store", tmp_path / "runs", "--format", "csv")
    # the one that is killed has its units forked by a server of its own, as a user's command has
    processes = [started(*words, **own), *(sharing(*words, **own) for _ in range(3))]
    until(lambda: list((tmp_path / "runs").glob("*/metrics.jsonl")), processes[0])
    for pid in (processes[0].pid, *descendants(processes[0].pid)):  # what trains for it has a session of its own
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
