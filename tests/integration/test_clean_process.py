"""A command that goes on in a fresh process: what is left of the first, and what is not. A run that is measured so:
test_decoys.py."""

import fcntl
import json
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from tepo.jobs.clean_process import go_on
from tepo_cli.main import main
from tests.integration.commands import python

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


if __name__ == "__main__":
    folder, *signals = sys.argv[1:]
    from tests.integration.test_clean_process import begin as begin_by_name  # so that its functions have a module

    begin_by_name(folder, "".join(signals))
