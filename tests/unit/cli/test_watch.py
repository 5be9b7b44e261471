import contextlib
from pathlib import Path

import pytest

from tests.support.commands import Terminal, alone
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
    terminal = Terminal(*WATCH, tmp_path, TERM="xterm", COLUMNS="80", LINES="24")
    shown = terminal.wait_for("1/8")
    folder.append_metrics({"training/global_step": 2, "critic/score/mean": 0.75, "timing_s/step": 2.0})
    shown += terminal.wait_for("75.0%") + terminal.wait_for("running")
    assert folder.path.name in shown
    assert "2/8" in shown
    assert terminal.leave("\x03") == 0
    with contextlib.suppress(OSError):  # the end of what it printed
        terminal.wait_for("never")
    assert not any(text in shown + terminal.printed for text in ("…", "Traceback", "interrupted"))
