"""A request to stop: SIGTERM or SIGUSR2 of a scheduler, before it takes the machine for another job or at a time limit,
and SIGHUP of a terminal that is closed, unless it is ignored from the start (`nohup`).

A command ends at once; training notes the request, and ends where its ranks agree to, with a checkpoint. The exit code
says that the same command goes on.
"""

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP)
EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: not now, the same command again
_PR_SET_PDEATHSIG = 1  # of prctl(2)
_noted: list[str] = []  # the signals that training has heard; signals are the process's, so is this


class Stopped(SystemExit):
    """A request to stop was followed. Raised on all ranks alike, those too that heard none."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)
        if threading.current_thread() is threading.main_thread():
            # it ends already, and the launcher's SIGTERM for a rank that is still closing is no news
            _listen(signal.SIG_IGN)

    def __str__(self) -> str:
        return f"asked to stop ({_noted[0] if _noted else 'another rank'})"


def at_once() -> None:
    """From now on a request ends the command by `Stopped`."""

    def end(number: int, frame: FrameType | None) -> None:
        _note(number)
        raise Stopped

    _listen(end)


@contextlib.contextmanager
def deferred(check_ranks: Callable[[], None]) -> Iterator[None]:
    """In here a request is noted; see `asked`. Nothing changes in a thread beside the main one, which hears none.

    check_ranks: called at SIGTERM, raises where that is no request but the end of a run that has lost a rank."""

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            check_ranks()
        _note(number)

    _noted.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = _listen(note)
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            if signal.getsignal(number) is note:  # else the process ends already
                signal.signal(number, handler)


def asked() -> bool:
    """Tell whether training was asked to stop."""
    return bool(_noted)


def end_if_asked(comm: Any = None) -> None:
    """Raises Stopped where this process was asked to, or another rank: with a `comm` all ranks call it at one point."""
    if any(comm.all_gather_object(asked())) if comm is not None else asked():
        raise Stopped


def pass_on(process: int, launcher: bool) -> None:
    """Ask a run that this process started. launcher: it is torchrun, whose ranks are asked; it would end them itself,
    after half a minute."""
    ranks = _children(process) if launcher else [process]
    for target in ranks or [process]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, signal.SIGUSR2 if ranks else signal.SIGTERM)


def lost_neighbour() -> bool:
    """Tell whether a rank of this machine has ended: torchrun sends SIGTERM to the others then, and also when it gets
    one itself."""
    started = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return started > 1 and len(_children(os.getppid())) < started


def _children(process: int) -> list[int]:
    """The processes that one has started and that still run."""
    children = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, parent, *_ = entry.read_text().rpartition(")")[2].split()
            if int(parent) == process and state != "Z":
                children.append(int(entry.parent.name))
    return children


def end_with(parent: int, number: int) -> None:
    """Have the kernel send this process a signal when the thread that started it ends, also by kill -9. parent: the id
    of its process."""
    import ctypes  # not at every start of a command

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:  # it has ended meanwhile
        os.kill(os.getpid(), number)


def _listen(handler: Any) -> list[Any]:
    """The handlers from before."""
    before = [signal.getsignal(number) for number in SIGNALS]
    for number, was in zip(SIGNALS, before, strict=True):
        if number != signal.SIGHUP or was is not signal.SIG_IGN:
            signal.signal(number, handler)
    return before


def _note(number: int) -> None:
    """Note a request. A terminal that is gone takes no more output, at which a progress bar would fail."""
    _noted.append(signal.Signals(number).name)
    for stream in (1, 2) if number == signal.SIGHUP else ():
        with contextlib.suppress(OSError):  # closed
            if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream)
                os.close(null)
