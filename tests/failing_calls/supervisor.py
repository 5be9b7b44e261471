"""A process whose system calls on the files of a folder are seen, and fail where the supervisor says so.

Linux hands the calls to the supervisor before it makes them (seccomp's user notifications: Linux 5.5, no privilege), so
that those of libraries in C++ and Rust are among them, with or without libc between. Not seen is what a mapping of a
file into memory writes, and io_uring; the store uses neither.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_ARGUMENT = 16  # offset of the first argument in `struct seccomp_data`, eight bytes each
_LOAD, _EQUAL, _ANY, _RETURN = 0x20, 0x15, 0x45, 0x06  # instructions of the filter (BPF)
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_RECEIVE, _ANSWER, _GO_ON = 0xC0502100, 0xC0182101, 1
_SECCOMP, _SET_FILTER, _NEW_LISTENER = 317, 1, 1 << 3
_NO_NEW_PRIVILEGES = 38
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_AT, _FD = "at", "fd"  # a path beside its folder's descriptor; a descriptor


class _Watched(NamedTuple):
    """A system call. place: of the file: "fd" and "at" for a descriptor and for a path beside a folder's, else a path;
    argument: its number. only: (number of an argument, bits) of which one must be set for the call to count."""

    kind: str
    place: str
    argument: int = 0
    only: tuple[int, int] | None = None


_X86_64 = {  # the ways in which Python, its libraries and Rust make these calls
    **dict.fromkeys((1, 18, 20, 77, 285), _Watched("write", _FD)),  # also writev, ftruncate, fallocate
    326: _Watched("write", _FD, 2),  # copy_file_range
    40: _Watched("write", _FD),  # sendfile
    **dict.fromkeys((74, 75), _Watched("fsync", _FD)),  # also fdatasync
    **dict.fromkeys((82, 86, 88), _Watched("rename", "path", 1)),  # also link, symlink
    **dict.fromkeys((264, 265, 316), _Watched("rename", _AT, 2)),  # also linkat
    266: _Watched("rename", _AT, 1),  # symlinkat
    **dict.fromkeys((84, 87), _Watched("unlink", "path")),  # also rmdir
    263: _Watched("unlink", _AT),
    83: _Watched("mkdir", "path"),
    258: _Watched("mkdir", _AT),
    2: _Watched("open", "path", only=(1, _CHANGES)),
    257: _Watched("open", _AT, only=(2, _CHANGES)),
    437: _Watched("open", _AT),  # openat2
    72: _Watched("lock", _FD, only=(1, 6)),  # fcntl with F_SETLK (6), F_SETLKW (7) and those of open files (37, 38)
    73: _Watched("lock", _FD),  # flock
}
_LOCKS = (6, 7, 37, 38)


class Call(NamedTuple):
    """A call before it is made. kind: write, fsync, rename, unlink, mkdir, open (to change the file) or lock. path:
    below the folder; of a rename where to."""

    kind: str
    path: str


class Ended(NamedTuple):
    """code: of the exit, negative for a signal. said: both streams."""

    code: int
    said: str


Verdict = Callable[[Call], int]
"""Decides on a call: 0 makes it, an errno fails it."""


def unavailable() -> str:
    """The reason that there can be no supervisor here; empty where there can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "the numbers of system calls are those of Linux on x86_64"
    ended = supervised(lambda: None, Path("/nowhere"), lambda call: 0)
    return "" if ended.code == 0 else f"seccomp notifies nobody here: {ended.said.strip()}"


def supervised(work: Callable[[], object], folder: Path, verdict: Verdict) -> Ended:
    """Call a function in a forked process in which each call on a file below the folder waits for its verdict.
    SystemExit and exceptions end it as they end an interpreter."""
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryFile() as printed:
        child = os.fork()
        if child == 0:
            _child(work, theirs, printed.fileno())
        theirs.close()
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        for listener in descriptors:
            _serve(listener, f"{folder.resolve()}/", verdict)
            os.close(listener)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed.seek(0)
        return Ended(code, printed.read().decode(errors="replace"))


def _child(work: Callable[[], object], channel: socket.socket, printed: int) -> None:
    code = 1
    try:
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        listener = _install()
        socket.send_fds(channel, [b"."], [listener])
        os.close(listener)
        channel.close()
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _install() -> int:
    """Let this process ask before the calls in `_X86_64`. Returns the descriptor on which the supervisor is asked."""
    program = b""
    for number, call in _X86_64.items():
        asked = _step(_RETURN, _NOTIFY)
        if number == 72:
            tests = [
                _step(_EQUAL, command, len(_LOCKS) - place - 1, 0 if place + 1 < len(_LOCKS) else 1)
                for place, command in enumerate(_LOCKS)
            ]
            asked = _step(_LOAD, _ARGUMENT + 8) + b"".join(tests) + asked
        elif call.only:
            argument, bits = call.only
            asked = _step(_LOAD, _ARGUMENT + 8 * argument) + _step(_ANY, bits, 0, 1) + asked
        asked += _step(_RETURN, _ALLOW)
        program += _step(_LOAD, 0) + _step(_EQUAL, number, 0, len(asked) // 8) + asked
    program += _step(_RETURN, _ALLOW)
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program)
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    listener = libc.syscall(_SECCOMP, _SET_FILTER, _NEW_LISTENER, head)
    if listener < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return listener


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """An instruction of the filter. yes, no: how many of the next are skipped."""
    return struct.pack("HBBI", code, yes, no, value)


def _serve(listener: int, folder: str, verdict: Verdict) -> None:
    """Answer until the last process under the filter has ended."""
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    while True:
        ((_, event),) = waiting.poll()
        if not event & select.POLLIN:
            return
        asked = bytearray(80)
        try:
            fcntl.ioctl(listener, _RECEIVE, asked)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):  # killed while it asked
                continue
            raise
        number, process, _, call, _, _, *arguments = struct.unpack("QIIiIQ6Q", asked)
        answer = 0
        try:
            path = _path(process, _X86_64[call], arguments)
        except OSError:  # gone
            path = ""
        kind = _X86_64[call].kind
        if path.startswith(folder) and not (kind == "mkdir" and os.path.isdir(path)):  # it would change nothing
            answer = verdict(Call(kind, path.removeprefix(folder)))
        with contextlib.suppress(FileNotFoundError):
            fcntl.ioctl(listener, _ANSWER, struct.pack("QqiI", number, 0, -answer, 0 if answer else _GO_ON))


def _path(process: int, call: _Watched, arguments: list[int]) -> str:
    """The absolute path of the file of a call, without links in the folders above it."""
    at = call.argument
    if call.place == _FD:
        return os.readlink(f"/proc/{process}/fd/{arguments[at] & 0xFFFFFFFF}")
    folder = f"/proc/{process}/cwd"
    if call.place == _AT:
        descriptor, at = ctypes.c_int(arguments[at] & 0xFFFFFFFF).value, at + 1
        if descriptor != -100:  # AT_FDCWD
            folder = f"/proc/{process}/fd/{descriptor}"
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        memory.seek(arguments[at])
        given = os.fsdecode(memory.read(4096).split(b"\0")[0])
    parent, name = os.path.split(os.path.join(os.readlink(folder), given))
    return os.path.join(os.path.realpath(parent), name)
