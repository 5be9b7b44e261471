"""Worker processes that may be killed: one answer at a time each, under the parent's clock.

Workers are fresh interpreters (not forks: nothing of the trainer, its CUDA state or its threads is inherited). A worker that
exceeds the limit is killed and replaced; its answer is graded wrong, the others never notice."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tepo.errors import RunFailed

_ROOT = str(Path(__file__).resolve().parents[3])
_MAIN = "from tepo.problems.grader.worker import main; main()"
_START_SECONDS = 120.0
_TASKS_PER_WORKER = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request: the worker's verdict, or "timeout", "crash" or "memory"."""

    correct: bool
    reason: str
    seconds: float


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    deadline: float
    task: int | None = None
    ready: bool = False
    served: int = 0
    started: float = 0.0
    received: bytearray = field(default_factory=bytearray)


class Pool:
    """Runs requests in up to `workers` processes. Safe to call from any thread; batches of several threads take turns."""

    def __init__(self, *, workers: int, timeout: float, memory_mb: int, recycle: int, relative: float, absolute: float):
        self._limit = workers or min(8, len(os.sched_getaffinity(0)))
        self._timeout, self._recycle = timeout, recycle
        self._settings = json.dumps({"memory_mb": memory_mb, "timeout": timeout, "relative": relative, "absolute": absolute})
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _stop_all, self._workers, self._owner)

    def run(self, requests: Sequence[dict[str, str]]) -> list[Outcome]:
        """An outcome for each request, in order."""
        with self._lock:
            if os.getpid() != self._owner:  # after a fork the pipes belong to the parent
                self._workers, self._owner = [], os.getpid()
                self._finalizer = weakref.finalize(self, _stop_all, self._workers, self._owner)
            outcomes: list[Outcome | None] = [None] * len(requests)
            waiting = list(range(len(requests) - 1, -1, -1))
            try:
                self._serve(requests, waiting, outcomes)
            except BaseException:  # an interrupt must not leave a worker with half a request
                self._drop(list(self._workers))
                raise
            return [outcome for outcome in outcomes if outcome]

    def pids(self) -> list[int]:
        """Process ids of the living workers."""
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """Stop every worker. The pool may be used again; it then starts new ones."""
        with self._lock:
            self._drop(list(self._workers))

    def _serve(self, requests: Sequence[dict[str, str]], waiting: list[int], outcomes: list[Outcome | None]) -> None:
        while waiting or any(worker.task is not None for worker in self._workers):
            wanted = min(self._limit, -(-len(waiting) // _TASKS_PER_WORKER))
            while len(self._workers) < wanted:
                self._workers.append(self._start())
            for worker in self._workers:
                if waiting and worker.ready and worker.task is None:
                    self._send(worker, waiting.pop(), requests)
            self._wait()
            for worker in list(self._workers):
                self._collect(worker, waiting, outcomes)

    def _start(self) -> _Worker:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH")))), "PYTHONHASHSEED": "0"}
        process = subprocess.Popen([sys.executable, "-P", "-c", _MAIN, self._settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        return _Worker(process, time.monotonic() + _START_SECONDS)

    def _send(self, worker: _Worker, task: int, requests: Sequence[dict[str, str]]) -> None:
        assert worker.process.stdin
        worker.task, worker.started = task, time.monotonic()
        worker.deadline = worker.started + self._timeout
        with contextlib.suppress(BrokenPipeError):  # it died: `_collect` sees the end of its output
            worker.process.stdin.write(json.dumps(requests[task]).encode() + b"\n")
            worker.process.stdin.flush()

    def _wait(self) -> None:
        """Sleep until a busy worker writes, ends, or reaches its deadline; take what it wrote."""
        busy = [worker for worker in self._workers if worker.task is not None or not worker.ready]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                assert worker.process.stdout
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            patience = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
            for key, _ in selector.select(patience):
                chunk = os.read(key.fd, 65536)
                key.data.received += chunk or b"\0"

    def _collect(self, worker: _Worker, waiting: list[int], outcomes: list[Outcome | None]) -> None:
        """Act on what a worker wrote, on its end, or on its deadline."""
        if worker.task is None and worker.ready:
            return
        received, seconds = bytes(worker.received), time.monotonic() - worker.started
        if received.endswith(b"\n"):
            worker.received.clear()
            if not worker.ready:
                worker.ready = True
                return
            assert worker.task is not None
            correct, reason = json.loads(received)
            outcomes[worker.task] = Outcome(correct, reason, seconds)
            worker.task, worker.served = None, worker.served + 1
            if reason == "memory" or worker.served >= self._recycle:
                self._drop([worker])
        elif received.endswith(b"\0") or time.monotonic() >= worker.deadline:
            ended = received.endswith(b"\0")
            self._drop([worker])
            if not worker.ready:
                raise RunFailed("a grader worker did not start", fix="python -c 'import math_verify' with the same interpreter, and raise memory_mb")
            assert worker.task is not None
            outcomes[worker.task] = Outcome(False, "crash" if ended else "timeout", seconds)

    def _drop(self, workers: list[_Worker]) -> None:
        for worker in workers:
            self._workers.remove(worker)
        _stop_all(workers, self._owner)


def _stop_all(workers: list[_Worker], owner: int) -> None:
    """Kill, reap and close; in the process that started them only."""
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.wait()
        for pipe in (worker.process.stdin, worker.process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
    workers.clear()
