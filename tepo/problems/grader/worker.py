"""A worker process: reads one answer a line, compares it with sympy, writes one verdict a line.

It imports sympy, warms the parser, and from then on only forks processes that judge, one at a time: after a kill the
next one is there in milliseconds, and knows as little of other answers as a fresh interpreter. What judges holds
nothing of value and may be killed at any time. What an answer may cost, the parent says and enforces; here its work is
counted. When the parent is killed, the pipe from it closes, and what judges is killed at once: the kernel's signal for
that (`stopping.end_with`) would also come at the end of the thread that started the worker. A kernel timer is there for
the case that worker and parent are killed. Started by `pool`, never imported by the parent."""

import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

_RECURSION = 6000
_WARM = (
    r"\frac{\sqrt{3}}{2}x^2-7x+1", r"2\sin(3x)\cos x", r"\ln(2^{5})+3\ln x", r"e^{-2t}\left(1+\frac{i\pi}{3}\right)",
    r"\binom{n}{2}+n!", r"\lfloor \frac{n}{2} \rfloor",
    r"y=2x+3", r"x^2 < 3", r"f(x)+a_{1}", r"[0, \infty)", r"\log_{2} 3",
)  # fmt: skip
"""What the parser reads for the first time takes it a hundred times longer; that time must not count as an answer's."""


def main() -> None:
    """Compare answers until the parent closes the pipe. Settings: relative, absolute."""
    serve(_load, _answer)


def serve(load: Callable[[dict[str, Any]], Any], answer: Callable[[Any, bytes], tuple[Any, str]]) -> None:
    """Serve until the parent closes the pipe. The first line of it: JSON with memory_mb, timeout and what `load` reads.
    answer: value and reason for what was loaded and a line."""
    settings = json.loads(sys.stdin.buffer.readline())
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal's, which the parent hears
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (settings["memory_mb"] << 20,) * 2)
    sys.setrecursionlimit(_RECURSION)
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    loaded = load(settings)
    while True:
        judge = os.fork()
        if not judge:
            _judge(lambda line: answer(loaded, line), settings, replies)
            os._exit(0)
        _kill_with_parent(judge)
        _, status = os.waitpid(judge, 0)
        if status == 0 or _ended():
            return


def _kill_with_parent(judge: int) -> None:
    """Wait for the end of what judges, or bring it about when the parent has closed the pipe."""
    handle, ends = os.pidfd_open(judge), select.poll()
    ends.register(handle, select.POLLIN)
    ends.register(0, 0)  # nothing but POLLHUP: the judge reads
    if all(stream == 0 for stream, _ in ends.poll()):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    os.close(handle)


def _ended() -> bool:
    """Take what the killed one left unread, lest the next one answers it; True when the parent has closed the pipe."""
    os.set_blocking(0, False)
    try:
        while os.read(0, 65536):
            pass
        return True
    except BlockingIOError:
        return False
    finally:
        os.set_blocking(0, True)


def _judge(answer: Callable[[bytes], tuple[Any, str]], settings: dict[str, Any], replies: Any) -> None:
    """Say who judges, then an answer to each line, until the parent closes the pipe."""
    replies.write(f"ready {os.getpid()}\n".encode())
    for line in sys.stdin.buffer:
        # CPU seconds: the parent's limit comes before it
        signal.setitimer(signal.ITIMER_PROF, 2 * settings["timeout"] + 10)
        started = time.process_time()
        value, reason = answer(line)
        reply = json.dumps([value, reason, time.process_time() - started])
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(reply.encode() + b"\n")


def _load(settings: dict[str, Any]) -> Any:
    import logging

    logging.disable(logging.CRITICAL)
    from tepo.problems.grader.symbolic.equality import Judge

    judge = Judge(settings["relative"], settings["absolute"])
    for text in _WARM:
        judge.check(text)
    return judge


def _answer(judge: Any, line: bytes) -> tuple[bool, str]:
    """(correct, reason) for a request {"gold", "answer", "first"}, (parsable, problem) for {"check", "first"};
    "again" as the reason of a first try that a second may let through."""
    from tepo.problems.grader.symbolic.allowance import OutOfWork, allowance, count

    request = json.loads(line)
    try:
        with allowance(first=request["first"]):
            if "check" in request:
                return judge.check(request["check"])  # type: ignore[no-any-return]
            return judge.grade(request["gold"], request["answer"])  # type: ignore[no-any-return]
    except OutOfWork:
        return False, "again" if request["first"] and count.reading >= 0 else "too much work"
    except MemoryError:
        return False, "memory"
    except RecursionError:
        return False, "too deep"
    except Exception:  # sympy raises whatever it likes on nonsense; the answer is then not the gold
        return False, "unreadable"
