"""A command that goes on in a fresh process: what is left of the first, what is not, and a run that is measured so."""

import fcntl
import json
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from tepo.jobs.clean_process import go_on
from tepo_cli.main import main
from tests.integration.commands import python, started, until

ROOT = str(Path(__file__).parents[2])  # the new process imports nothing from the current folder


def say(before: int, lock: str) -> None:
    """In the fresh process: say what it is like."""
    with open(lock, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where the first process had left it to this one
    facts = {
        "same": os.getpid() == before,
        "holds": hasattr(sys, "held"),
        "rank": os.environ.get("RANK"),
        "own": os.environ.get("OWN"),
        "added": os.environ.get("ADDED"),
        "held": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    }
    sys.stdout.write(json.dumps(facts) + "\n")


def begin(folder: str, signalled: str) -> None:
    """What a command does that has trained: it holds a lock that a child could inherit, and has threads."""
    sys.held = "memory"  # type: ignore[attr-defined]
    environment = dict(os.environ)
    os.environ["ADDED"] = "by a library"
    file = os.open(f"{folder}/lock", os.O_WRONLY | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    os.set_inheritable(file, True)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    sys.stdout.write("before\n")  # not flushed
    if signalled:  # between the end of the one and the beginning of the other
        sys.addaudithook(lambda event, _: signal.raise_signal(signal.SIGTERM) if event == "os.exec" else None)
    go_on(environment, main, partial(say, os.getpid(), f"{folder}/lock"))


def test_the_process_is_the_same_and_holds_nothing(tmp_path: Path) -> None:
    done = python("-m", "tests.integration.test_clean_process", tmp_path, RANK="0", OWN="kept", PYTHONPATH=ROOT)
    before, after = done.stdout.splitlines()
    assert before == "before"
    assert json.loads(after) == {"same": True, "holds": False, "rank": None, "own": "kept", "added": None, "held": []}


def test_a_request_on_the_way_is_heard_afterwards(tmp_path: Path) -> None:
    done = python("-m", "tests.integration.test_clean_process", tmp_path, "signalled", code=75, PYTHONPATH=ROOT)
    assert done.stdout == "before\n"
    assert "asked to stop (SIGTERM)" in done.stderr


@pytest.mark.disaster
@pytest.mark.vllm
def test_a_run_is_trained_and_measured_by_one_command(tmp_path: Path) -> None:
    """By one process, of whose memory nothing is left when it measures; its cost is one entry."""
    from tepo.config.compose import compose
    from tepo.store.run_folder import RunFolder
    from tests.unit.training.small import SMALL, few_problems

    words = [*SMALL, "sampler=vllm", "sampler.memory_fraction=0.06", "data.benchmarks=[add3]", "train.steps=1"]
    folder = few_problems(tmp_path)["TEPO_PATH"]
    command = started("train", *words, "--evaluate", "--store", tmp_path / "runs", TEPO_PATH=folder)
    shown = Path(f"/proc/{command.pid}/cmdline")
    until(lambda: b"tepo.jobs.clean_process" in shown.read_bytes(), command)
    assert command.poll() is None
    done = command.end()
    assert done.stderr.index(": 1 step,") < done.stderr.index("accuracy %") < done.stderr.index("base is not measured")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in few_problems(tmp_path / "again").items():
            patch.setenv(name, value)
        run = RunFolder.of(compose([*words, f"store={tmp_path / 'runs'}"]))
    assert run.measured() == ["add3"]
    (cost,) = json.loads((run.path / "cost.json").read_text())
    assert (cost["steps"], cost["benchmarks"]) == (1, 1)
    assert cost["measuring_s"] > 1  # an import of vLLM alone takes more
    assert cost["cpu_s"] > cost["measuring_s"] + cost["training_s"]
    assert not run.busy()


if __name__ == "__main__":
    folder, *signals = sys.argv[1:]
    from tests.integration.test_clean_process import begin as begin_by_name  # so that its functions have a module

    begin_by_name(folder, "".join(signals))
