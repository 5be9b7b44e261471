"""kill -9 at random moments: the run resumes and ends with the metrics and weights of one that was never killed."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tepo import provenance
from tests.unit.training.small import SMALL, lasting, small, weights

STEPS = "train.steps=12"


def start(store: Path) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "tepo_cli", "train", *SMALL, STEPS, f"store={store}", "--quiet"]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_five_kills_change_nothing(tmp_path: Path) -> None:
    from tepo.training.run_folder import RunFolder

    draw = random.Random(7)
    run = RunFolder.of(small(tmp_path / "killed", STEPS))
    for _ in range(5):
        done = len(run.metrics())
        process = start(tmp_path / "killed")
        limit = time.monotonic() + 120
        while (
            len(run.metrics()) <= done and process.poll() is None and time.monotonic() < limit
        ):  # until a step was added …
            time.sleep(0.02)
        time.sleep(draw.random() * 0.3)  # … and then anywhere in the next ones
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if run.finished():
            break
    final = start(tmp_path / "killed")
    _, errors = final.communicate(timeout=300)
    assert final.returncode == 0, errors.decode()
    whole = start(tmp_path / "whole")
    assert whole.wait(300) == 0
    other = RunFolder.of(small(tmp_path / "whole", STEPS))
    assert lasting(run.path) == lasting(other.path)
    assert weights(run.path) == weights(other.path)
    (whole_session,), sessions = provenance.sessions(other.path), provenance.sessions(run.path)
    assert sessions[0]["ended"] is None  # killed
    assert sessions[-1]["ended"]
    assert {session["commit"] for session in sessions} == {whole_session["commit"]}
