"""A worker process: reads one answer a line, compares it with sympy, writes one verdict a line.

It holds nothing of value and may be killed at any time. The parent's clock decides; the kernel timer set here only makes sure
that a worker whose parent was killed while it computed does not live on. Started by `pool`, never imported by the parent."""

import json
import os
import resource
import signal
import sys
from typing import Any

_RECURSION = 6000
_WARM = (
    r"\frac{\sqrt{3}}{2}x^2-7x+1", r"2\sin(3x)\cos x", r"\ln(2^{5})+3\ln x", r"e^{-2t}\left(1+\frac{i\pi}{3}\right)", r"\binom{n}{2}+n!", r"\lfloor \frac{n}{2} \rfloor",
    r"y=2x+3", r"x^2 < 3", r"f(x)+a_{1}", r"[0, \infty)", r"\log_{2} 3",
)  # fmt: skip
"""What the parser reads for the first time takes it a hundred times longer; that time must not count as an answer's."""


def main() -> None:
    """Serve until the parent closes the pipe. argv[1]: JSON with memory_mb, timeout, relative, absolute."""
    settings = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (settings["memory_mb"] << 20,) * 2)
    sys.setrecursionlimit(_RECURSION)
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    decide = _load(settings)
    replies.write(b"ready\n")
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, 2 * settings["timeout"] + 10)
        reply = json.dumps(_answer(decide, line)).encode() + b"\n"
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(reply)


def _load(settings: dict[str, Any]) -> Any:
    """Import sympy and the parser, and build the comparison."""
    import logging

    logging.disable(logging.CRITICAL)
    from tepo.problems.grader.decide import Decider

    decider = Decider(settings["relative"], settings["absolute"])
    for text in _WARM:
        decider.check(text)
    return decider


def _answer(decider: Any, line: bytes) -> list[Any]:
    """[correct, reason] for a request {"gold", "answer"}, [parsable, problem] for {"check"}."""
    try:
        request = json.loads(line)
        if "check" in request:
            return list(decider.check(request["check"]))
        return list(decider.grade(request["gold"], request["answer"]))
    except MemoryError:
        return [False, "memory"]
    except RecursionError:
        return [False, "too deep"]
    except Exception:  # sympy raises whatever it likes on nonsense; the answer is then not the gold
        return [False, "unreadable"]
