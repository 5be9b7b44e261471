"""What /proc says of processes, any of which may end while it is read; of one that has ended there is nothing."""

import contextlib
from pathlib import Path


def read(pid: int, name: str) -> str:
    """/proc/PID/NAME, or "" where the process has gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/{name}").read_text()
    return ""


def words_of(pid: int) -> list[str]:
    """Its command line."""
    return read(pid, "cmdline").split("\0")


def runs(pid: int) -> bool:
    """Whether it is there and has not ended; of one that nobody has waited for the entry stays."""
    return read(pid, "stat").rpartition(") ")[2][:1] not in ("", "Z")


def children(pid: int) -> list[int]:
    """Of all its threads."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        tasks = [task.name for task in Path(f"/proc/{pid}/task").iterdir()]
        return [int(word) for task in tasks for word in read(pid, f"task/{task}/children").split()]
    return []


def descendants(pid: int) -> list[int]:
    below = children(pid)
    return below + [each for child in below for each in descendants(child)]
