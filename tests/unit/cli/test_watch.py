import os
import pty
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.integration.commands import alone
from tests.unit.store.test_live_runs import run

WATCH = ("list", "--watch", "--store")


def test_in_a_pipe_it_looks_once(tmp_path: Path) -> None:
    folder = run(tmp_path, 0, "running", [0.25, 0.5])
    done = alone(*WATCH, tmp_path)
    assert done.stderr == ""
    head, line = done.stdout.splitlines()
    assert head == f"{tmp_path}: 1 running, 0 ended in the last 10 min"
    assert line == f"{folder.path.name}  tepo  0  2/8  reward 50.0%  entropy 0.500  length 31  12 s  running"


@pytest.mark.slow
def test_in_a_terminal_it_follows_the_run_until_ctrl_c(tmp_path: Path) -> None:
    folder = run(tmp_path, 0, "running", [0.25])
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tepo_cli", *WATCH, tmp_path],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        assert "1/8" in _until(ours, "1/8")
        folder.append_metrics({"training/global_step": 2, "critic/score/mean": 0.75, "timing_s/step": 2.0})
        shown = _until(ours, "2/8")
        assert folder.path.name in shown
        assert "75.0%" in shown
        assert "running" in shown
        assert "…" not in shown
        process.send_signal(signal.SIGINT)
        rest = _until(ours, None)
        assert process.wait(timeout=120) == 0
        assert "Traceback" not in rest
        assert "interrupted" not in rest
    finally:
        process.kill()
        os.close(ours)


def _until(terminal: int, text: str | None) -> str:
    """What it shows until a text, or until its end."""
    shown, deadline = "", time.monotonic() + 120
    while time.monotonic() < deadline and (text is None or text not in shown):
        try:
            part = os.read(terminal, 65536)
        except BlockingIOError:
            time.sleep(0.05)
            continue
        except OSError:  # the process has closed it
            break
        shown += part.decode(errors="replace")
    return shown
