"""Worker processes that may be killed: one answer at a time each, under a budget that the parent enforces.

Workers are interpreters of their own (not forks: nothing of the trainer, its CUDA state or its threads is inherited)
that fork what judges (see `worker`), so that sympy is imported once a worker and not after every kill. The budget does
not depend on how busy the machine is: a count of work (see `allowance`), then the CPU time of what judges. The clock on
the wall only ends a worker that does not run. An answer whose work exceeds the smaller allowance of a first try is
tried once more, among the others, by a process that judged nothing before; one that exceeds its CPU time is tried once
more alone. What exceeds the full budget there is graded wrong. The others never notice."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tepo.common import interpreter
from tepo.common.errors import RunFailed
from tepo.problems.grader.options import GraderOptions

OUT_OF_BUDGET = ("too much work", "timeout", "stalled")
"""Reasons of answers that were given up, on a second try alone: by the count of their work, by the CPU time of their
worker, or because the worker hardly ran at all (a stopped or hopelessly busy machine: the only reason that says
nothing about the answer)."""

_MAIN = "from {} import main; main()"
_START_SECONDS = 120.0
_TASKS_PER_WORKER = 4
_TICKS = os.sysconf("SC_CLK_TCK")
_STALLED = 20
"""Wall-clock seconds per CPU second of the budget after which a worker counts as stalled."""


_Try = tuple[bool, float]
_FIRST, _SECOND, _ALONE = (True, 0.5), (False, 0.5), (False, 1.0)
"""Tries: whether with the smaller allowance of work, and the share of the option `timeout`."""
_AGAIN = "again"
"""Reason of a first try whose work a second may let through."""


class PoolOutcome(NamedTuple):
    """Result of one request."""

    value: Any  # the worker's; False where it was given up
    reason: str  # the worker's, or one of OUT_OF_BUDGET, "crash" or "memory"
    seconds: float  # of CPU time


@dataclass(slots=True)
class _Worker:
    """A process and what judges in it. Readings of its CPU clock are in seconds, others on the monotonic clock."""

    process: subprocess.Popen[bytes]
    judge: int = 0  # the process that judges, a child of `process`
    handle: int | None = None  # by which no other process than that can be killed
    task: int | None = None
    ready: bool = False
    served: int = 0  # tasks
    began: float = 0.0  # its CPU clock when it got its task
    before: float = 0.0  # CPU seconds of an earlier try
    limit: float = 0.0  # its CPU clock at which it is ended
    due: float = 0.0  # when to look at it again
    stalled: float = 0.0  # when it is ended however little it computed
    received: bytearray = field(default_factory=bytearray)

    @property
    def busy(self) -> bool:
        return self.task is not None or not self.ready

    def cpu_seconds(self) -> float:
        """User and system time so far, as the kernel counts it; what it began with once the process is gone."""
        try:
            with open(f"/proc/{self.judge}/stat", "rb", buffering=0) as file:
                fields = file.read(1024).rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return self.began
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def expect(self) -> None:
        """Wait for a process that judges; the worker is busy until it says that it is there."""
        self.task, self.ready, self.served = None, False, 0
        self.due = self.stalled = time.monotonic() + _START_SECONDS

    def kill(self) -> None:
        """Kill what judges; `process` forks another."""
        if self.handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        self.forget()

    def renew(self) -> None:
        """Replace what judges by one that has judged nothing."""
        self.kill()
        self.expect()

    def forget(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


class Pool:
    """Runs requests in up to `options.workers` processes. Safe to call from any thread; batches of several threads take
    turns. module: the one whose `main` a worker runs (see `worker.serve`). settings: what it loads."""

    def __init__(self, options: GraderOptions, module: str, settings: Mapping[str, Any]):
        self._options, self._main = options, _MAIN.format(module)
        self._limit = options.workers or min(8, len(os.sched_getaffinity(0)))
        limits = {"memory_mb": options.memory_mb, "timeout": options.timeout}
        self._settings = json.dumps({**settings, **limits}).encode() + b"\n"
        self._workers: list[_Worker] = []
        self._again: list[tuple[int, float]] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _stop_all, self._workers, self._owner)

    def run(self, requests: Sequence[dict[str, Any]]) -> list[PoolOutcome]:
        """An outcome for each request, in order."""
        with self._lock:
            if os.getpid() != self._owner:  # after a fork the pipes belong to the parent
                self._workers, self._owner = [], os.getpid()
                self._finalizer = weakref.finalize(self, _stop_all, self._workers, self._owner)
            outcomes: list[PoolOutcome | None] = [None] * len(requests)
            try:
                self._serve(requests, outcomes)
                for task, first in enumerate(outcomes):
                    if first and first.reason in OUT_OF_BUDGET:
                        second = self._alone(requests[task])
                        outcomes[task] = second._replace(seconds=first.seconds + second.seconds)
            except BaseException:  # an interrupt must not leave a worker with half a request
                self._drop(list(self._workers))
                raise
            return [outcome for outcome in outcomes if outcome]

    def pids(self) -> list[int]:
        """Process ids of what judges."""
        return [worker.judge for worker in self._workers if worker.ready]

    def close(self) -> None:
        """Stop every worker. The pool may be used again; it then starts new ones."""
        with self._lock:
            self._drop(list(self._workers))

    def _serve(self, requests: Sequence[dict[str, Any]], outcomes: list[PoolOutcome | None]) -> None:
        """A first try of every request, and a second of those that work ended. What a first try ended is a new process
        when it comes back; it takes a second try before a first."""
        waiting, self._again = list(range(len(requests) - 1, -1, -1)), []
        while waiting or self._again or any(worker.task is not None for worker in self._workers):
            worker_count = min(self._limit, -(-(len(waiting) + len(self._again)) // _TASKS_PER_WORKER))
            while len(self._workers) < worker_count:
                self._workers.append(self._start())
            for worker in self._workers:
                if worker.busy:
                    continue
                if self._again and not worker.served:
                    task, seconds = self._again.pop()
                    self._send(worker, task, requests[task], _SECOND, seconds)
                elif waiting:
                    task = waiting.pop()
                    self._send(worker, task, requests[task], _FIRST)
                elif self._again:
                    worker.renew()
            self._attend(outcomes)

    def _alone(self, request: dict[str, Any]) -> PoolOutcome:
        """A second try: in a worker that judged nothing before, while no other computes or starts."""
        if not self._workers:
            self._workers.append(self._start())
        elif all(worker.served for worker in self._workers):
            self._workers[0].renew()
        outcomes: list[PoolOutcome | None] = [None]
        while any(worker.busy for worker in self._workers):
            self._attend(outcomes)
        self._send(next(worker for worker in self._workers if not worker.served), 0, request, _ALONE)
        while (outcome := outcomes[0]) is None:
            self._attend(outcomes)
        return outcome

    def _start(self) -> _Worker:
        environment = interpreter.environment() | {"PYTHONHASHSEED": "0"}
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        command = interpreter.command("-c", self._main)
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, env=environment)
        worker = _Worker(process)
        worker.expect()
        self._write(worker, self._settings)
        return worker

    def _send(self, worker: _Worker, task: int, request: dict[str, Any], kind: _Try, before: float = 0.0) -> None:
        """before: CPU seconds of an earlier try."""
        (first, share), now = kind, time.monotonic()
        seconds = share * self._options.timeout
        worker.task, worker.began, worker.before = task, worker.cpu_seconds(), before
        worker.limit, worker.due, worker.stalled = worker.began + seconds, now + seconds, now + _STALLED * seconds
        self._write(worker, json.dumps({**request, "first": first}).encode() + b"\n")

    def _write(self, worker: _Worker, line: bytes) -> None:
        assert worker.process.stdin
        with contextlib.suppress(BrokenPipeError):  # it died: `_collect` sees the end of its output
            worker.process.stdin.write(line)
            worker.process.stdin.flush()

    def _attend(self, outcomes: list[PoolOutcome | None]) -> None:
        """Sleep until a busy worker writes, ends, or is due; act on what happened."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                if worker.busy:
                    assert worker.process.stdout
                    selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            patience = max(0.0, min(worker.due for worker in self._workers if worker.busy) - time.monotonic())
            for key, _ in selector.select(patience):
                key.data.received += os.read(key.fd, 65536) or b"\0"
        for worker in [worker for worker in self._workers if worker.busy]:
            self._collect(worker, outcomes)

    def _collect(self, worker: _Worker, outcomes: list[PoolOutcome | None]) -> None:
        while b"\n" in worker.received:
            line, _, rest = worker.received.partition(b"\n")
            worker.received = bytearray(rest)
            self._hear(worker, bytes(line), outcomes)
        if not worker.busy:
            return
        now = time.monotonic()
        if worker.received.endswith(b"\0"):
            reason = "crash"
        elif now < worker.due:
            return
        elif now >= worker.stalled:
            reason = "stalled"
        elif (seconds_left := worker.limit - worker.cpu_seconds()) > 0:  # read only when it may have reached the limit
            worker.due = min(now + max(seconds_left, 1 / _TICKS), worker.stalled)
            return
        else:
            reason = "timeout"
        if not worker.ready:
            self._drop([worker])
            fix = "python -c 'import math_verify' with the same interpreter, and raise memory_mb"
            raise RunFailed("a grader worker did not start", fix=fix)
        assert worker.task is not None
        outcomes[worker.task] = PoolOutcome(False, reason, worker.before + worker.cpu_seconds() - worker.began)
        if reason == "crash":
            self._drop([worker])
        else:
            worker.renew()

    def _hear(self, worker: _Worker, line: bytes, outcomes: list[PoolOutcome | None]) -> None:
        if line.startswith(b"ready "):
            if worker.task is not None:  # the one that had the task is gone
                outcomes[worker.task], worker.task = PoolOutcome(False, "crash", 0.0), None
                self._drop([worker])
            else:
                worker.forget()
                with contextlib.suppress(ProcessLookupError):  # killed at once: the next one is on its way
                    judge = int(line.split()[1])
                    worker.judge, worker.handle, worker.ready = judge, os.pidfd_open(judge), True
        elif worker.task is not None:  # else of one that was killed as it wrote
            value, reason, seconds = json.loads(line)
            if reason == _AGAIN:
                self._again.append((worker.task, seconds))
            else:
                outcomes[worker.task] = PoolOutcome(value, reason, worker.before + seconds)
            worker.task, worker.served = None, worker.served + 1
            if reason in (_AGAIN, "memory", *OUT_OF_BUDGET) or worker.served >= self._options.recycle:
                worker.renew()  # what was cut off may have left sympy's memory half written

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
        worker.kill()
    for worker in workers:
        worker.process.wait()
        for pipe in (worker.process.stdin, worker.process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
    workers.clear()
