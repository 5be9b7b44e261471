"""The real commands, as a user types them, each a process of its own.

A server forks them with the imports done, as it does the units of a study: torch and transformers alone take 5 s of CPU
time. A command that is run to its end has the units of its study forked by the same server; one that is `started`, and
may be killed, starts a server of its own as it does for a user.
"""

import fcntl
import os
import pty
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tepo.launch import forkserver

TIME_LIMIT = 1800  # seconds after which a command hangs: a slow or busy machine never comes near

WARM = (
    *forkserver._WARM, "pandas", "pyarrow.dataset", "pyarrow.pandas_compat", "pyarrow.parquet", "scipy.stats", "altair",
    "vl_convert", "pydantic.type_adapter", "tepo.analysis.page", "tepo.jobs.model_card", "tepo.problems.procedural",
    "tepo.reporting.charts.curves", "tepo.sampling.backends.torch", "tepo.sampling.embedded.torch_sampler",
    "tepo.training.engine.backends.torch", "tepo.training.engine.torch_engine", "tepo.studies.record_runs",
)  # fmt: skip
_SERVER = get_context("forkserver")
_SERVER.set_forkserver_preload([*WARM])


@dataclass(frozen=True)
class OwnSignal:
    """A signal that a process sends itself at a place in its work, which neither a quiet nor a busy machine moves:
    before the `more`-th change below `folder` (a file opened to be written, renamed or removed, a folder made) after
    the first that matches the pattern of "EVENT PATH", such as "os.rename */samples.parquet"."""

    number: int
    folder: Path
    first: str
    more: int

    def wait(self) -> None:
        """In the process: from now on, in all of its threads."""
        left: int | None = None

        def look(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            if event not in ("open", "os.rename", "os.remove", "os.mkdir"):
                return
            if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
                return
            path = arguments[event == "os.rename"]  # where to
            if isinstance(path, int) or not os.fsdecode(path).startswith(f"{self.folder}/"):
                return
            if left is not None:
                left -= 1
            elif fnmatch(f"{event} {os.fsdecode(path)}", self.first):
                left = self.more
            if left == 0:
                os.kill(os.getpid(), self.number)

        sys.addaudithook(look)


class Started:
    """A process under way; what it prints goes to files, so that it never waits for a reader."""

    def __init__(
        self,
        work: Callable[..., Any],
        *arguments: Any,
        cwd: Path | None = None,
        own_signal: OwnSignal | None = None,
        **environment: str,
    ):
        self._folder = tempfile.TemporaryDirectory(prefix="command")
        self._streams = tuple(Path(self._folder.name) / name for name in ("out", "err"))
        given = (work, arguments, self._streams, cwd or Path.cwd(), os.environ | environment, own_signal)
        self._process = _SERVER.Process(target=_become, args=given)
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""
        return self._process.exitcode

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.join()

    def end(self, seconds: float = TIME_LIMIT, code: int | None = 0) -> "subprocess.CompletedProcess[str]":
        """Wait for the end with this exit code (None: any), and return what was printed."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self.kill()
            raise AssertionError(f"still running after {seconds} s: {self._streams[1].read_text()[-2000:]}")
        out, err = (stream.read_text() for stream in self._streams)
        return _ended(subprocess.CompletedProcess([], self._process.exitcode, out, err), code)


def _ended(done: "subprocess.CompletedProcess[str]", code: int | None) -> "subprocess.CompletedProcess[str]":
    """Check the exit code; a user's mistake has no traceback."""
    assert code in (None, done.returncode), (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    assert code != 2 or "Traceback" not in done.stderr, done.stderr
    return done


def tepo(
    *words: str | Path, cwd: Path | None = None, code: int | None = 0, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, which must have this exit code (None: any); more environment variables as keywords."""
    return sharing(*words, cwd=cwd, **environment).end(code=code)


def alone(*words: str | Path, code: int = 0, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in an interpreter of its own: what the libraries read when they are imported counts."""
    return python("-m", "tepo_cli", *words, code=code, **environment)


def python(
    *words: str | Path, cwd: Path | None = None, code: int | None = 0, seconds: float = TIME_LIMIT, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run an interpreter to its end, which must have this exit code (None: any)."""
    command = [sys.executable, *map(str, words)]
    where: Any = {"cwd": cwd, "env": os.environ | environment, "timeout": seconds}
    return _ended(subprocess.run(command, capture_output=True, text=True, **where), code)


def started(
    *words: str | Path, cwd: Path | None = None, own_signal: OwnSignal | None = None, **environment: str
) -> Started:
    """Start a command and leave it running."""
    return program("tepo_cli", *words, cwd=cwd, own_signal=own_signal, **environment)


def sharing(*words: str | Path, cwd: Path | None = None, **environment: str) -> Started:
    """Start a command whose own processes are forked by the server of the tests."""
    return Started(_with_our_server, "tepo_cli", *map(str, words), cwd=cwd, **environment)


def program(
    name: str, *words: str | Path, cwd: Path | None = None, own_signal: OwnSignal | None = None, **environment: str
) -> Started:
    """Start `python -m name words`."""
    return Started(_run_module, name, *map(str, words), cwd=cwd, own_signal=own_signal, **environment)


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *words: str | Path, **environment: str) -> None:
        self.printed, (self.ours, self._theirs) = "", pty.openpty()
        environment = os.environ | {"TERM": "dumb"} | environment
        arguments = (os.ttyname(self._theirs), environment, "tepo_cli", *map(str, words))
        self.process = _SERVER.Process(target=_in_terminal, args=arguments)
        self.process.start()

    def wait_for(self, text: str, seconds: float = TIME_LIMIT) -> str:
        """What was printed up to a text, since the last call."""
        end = time.monotonic() + seconds
        while text not in self.printed:
            assert time.monotonic() < end, self.printed
            if select.select([self.ours], [], [], 1)[0]:
                self.printed += os.read(self.ours, 4096).decode(errors="replace")
            else:
                assert self.process.exitcode is None, self.printed
        shown, _, self.printed = self.printed.partition(text)
        return shown

    def read_until(self, happened: Callable[[], Any]) -> None:
        """Take what is printed until something has happened."""
        while not happened():
            assert self.process.exitcode is None, self.printed
            if select.select([self.ours], [], [], 0.05)[0]:
                self.printed += os.read(self.ours, 4096).decode(errors="replace")

    def close(self) -> None:
        """As a person closes the window. Waits for the end of the command."""
        os.close(self._theirs)
        os.close(self.ours)
        self.process.join(TIME_LIMIT)

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def leave(self, key: str, seconds: float = 240) -> int:
        """Press a key until the command has ended, as a person does: Python's `input` misses a Ctrl-C that comes after
        it has written its prompt and before it waits for keys. Returns the exit code."""
        end = time.monotonic() + seconds
        while self.process.exitcode is None:
            assert time.monotonic() < end, self.printed
            self.type(key)
            self.process.join(60)  # a second one while it ends would kill it
        os.close(self._theirs)  # what it printed has an end
        return self.process.exitcode


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ranks(work: str | Callable[..., Any], *arguments: Any, count: int = 2) -> list[Started]:
    """A function or `python -m work` in so many ranks, without a launcher that would end some for another."""
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    start: Callable[..., Started] = program if isinstance(work, str) else Started
    return [start(work, *arguments, RANK=number, LOCAL_RANK=number, **shared) for number in map(str, range(count))]


def until(happened: Callable[[], Any], process: Started, seconds: float = TIME_LIMIT) -> None:
    """Wait until something has happened, or the process has ended."""
    limit = time.monotonic() + seconds
    while not happened() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.005)


def _become(
    work: Callable[..., Any], arguments: tuple, streams: tuple, cwd: Path, environment: dict, own: OwnSignal | None
) -> None:
    """In the forked process: the environment, folder and streams of a new one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for number, stream in enumerate(streams, start=1):
        with stream.open("wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if own:
        own.wait()
    work(*arguments)


def _in_terminal(terminal: str, environment: dict[str, str], name: str, *words: str) -> None:
    """In the forked process: a session of its own, whose terminal is all of its streams."""
    os.setsid()
    descriptor = os.open(terminal, os.O_RDWR)
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(descriptor, number)
    # those that are there were made for other streams: output with a buffer, and input from nowhere
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    _run_module(name, *words)


def _with_our_server(name: str, *words: str) -> None:
    forkserver._serve = forkserver.forkserver._forkserver.ensure_running = lambda: None
    _run_module(name, *words)


def _run_module(name: str, *words: str) -> None:
    sys.argv = [name, *words]
    runpy.run_module(name, run_name="__main__", alter_sys=True)
