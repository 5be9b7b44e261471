import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tepo.launch.forkserver import devices, job_environment, start
from tepo.launch.local import run_local
from tepo.studies.plan_studies import plan_all
from tests.support.commands import python


def test_each_slot_has_its_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices(1, 0) == {}
    assert devices(1, 2) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert devices(1, 2) == {"CUDA_VISIBLE_DEVICES": "6,7"}
    assert (job_environment() | devices(0, 0))["CUDA_VISIBLE_DEVICES"] == "", "--gpus 0 on a machine that has some"


SCRIPT = "import os, sys; print(os.environ['MARK'], os.environ['OMP_NUM_THREADS']); sys.exit(3)"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [(["-c", SCRIPT], 3, "here 1\n"), (["-m", "tepo_cli", "train", "objectve=tepo"], 2, "did you mean 'objective'")],
)
def test_exit_code_output_and_environment_of_a_command(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    log = tmp_path / "run" / "log.txt"
    process = start([sys.executable, *words], log, job_environment() | {"MARK": "here"})
    process.join(120)
    assert process.exitcode == code
    assert said in log.read_text()


MARK = """
import sys
if "tepo_cli" in sys.orig_argv:
    print("a fresh interpreter", flush=True)
"""


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_unit_with_a_gpu_is_not_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    """CUDA that the server might have touched does not survive a fork; an interpreter that starts reads this file."""
    (tmp_path / "sitecustomize.py").write_text(MARK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ((_, (_, unit, *_)),) = plan_all(["table1"], "laptop", store=tmp_path / "runs", overrides=["train.steps=1"])
    mistaken = replace(unit, overrides=("train.steps=0",))  # it ends before it trains
    (failure,) = run_local([mistaken], 1, gpus, lambda states: None)
    assert ("a fresh interpreter" in unit.folder.log.read_text()) is bool(gpus), failure


@pytest.mark.slow
def test_the_server_that_imports_hears_neither_ctrl_c_nor_the_end_of_a_terminal() -> None:
    """In a process of its own, because the server of this one is up:
    asked at once, seconds before the imports are done."""
    script = (
        "from tepo.launch import forkserver as slots; from multiprocessing import forkserver as f; slots._serve()\n"
    )
    script += "print(open(f'/proc/{f._forkserver._forkserver_pid}/status').read())"
    done = python("-c", script)
    (ignored,) = [int(line.split()[1], 16) for line in done.stdout.splitlines() if line.startswith("SigIgn")]
    assert all(ignored >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGHUP))


def test_interrupt_reaches_the_command(tmp_path: Path) -> None:
    script = "import signal, time; print('up', flush=True); time.sleep(60)"
    process = start([sys.executable, "-c", script], tmp_path / "log.txt", job_environment())
    while process.is_alive() and "up" not in (tmp_path / "log.txt").read_text():
        process.join(0.02)
    assert os.getsid(process.pid) == process.pid
    os.kill(process.pid, signal.SIGINT)
    process.join(120)
    assert "KeyboardInterrupt" in (tmp_path / "log.txt").read_text()
