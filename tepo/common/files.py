"""Files that appear whole or not at all (commit by rename), locks, and stable hashes of what files hold.

What is being written or removed has a hidden name beside its own, `.NAME.` and eight hex digits: a kill leaves that,
and whoever holds the lock next removes it.
"""

import contextlib
import errno
import fcntl
import fnmatch
import glob
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Container, Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

from tepo.common.errors import BUSY, UserError

_HEX = "[0-9a-f]" * 8
TEMPORARY = ".*.*.????????"  # pattern of a file that was being written, also by an earlier version
_DEEPEST = 100  # levels of JSON
_SMALL = 1 << 20  # bytes: such a file is read as fast as its time stamp can be trusted, which counts in milliseconds
_EXPLAINED = {
    errno.ENOSPC: "the disk is full",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "the disk reports an error (EIO)",
    errno.ESTALE: "the network file system has lost the place",
    errno.ENOSYS: "the file system lacks what that takes",
    errno.EOPNOTSUPP: "the file system lacks what that takes",
    errno.EACCES: "no permission to write",
    errno.EPERM: "no permission to write",
    errno.EDQUOT: "the disk quota is used up",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EEXIST: "a file is in the way",
    errno.EISDIR: "a folder is in the way",
    errno.ENOENT: "the folder is gone, or cannot be made there",
    errno.EFBIG: "the file is larger than the system allows",
    errno.ELOOP: "a symbolic link is in the way, or links in the path go round in a circle",
    errno.EMLINK: "the file has a second name (a hard link), under which it would change too",
}

STORE = "--store DIR"


@contextlib.contextmanager
def explain_write_errors(path: Path, option: str = STORE) -> Iterator[None]:
    """Turn a full or read-only disk into a UserError that names the place, and the option that names another."""
    try:
        yield
    except Exception as error:
        native = re.search(r"os error (\d+)", str(error))  # of a native library, such as SafetensorError's
        number = error.errno if isinstance(error, OSError) else native and int(native[1])
        if number not in _EXPLAINED:
            raise
        space = "free some space, or " if number in (errno.ENOSPC, errno.EDQUOT) else ""
        remark = "; finished steps are kept" if option == STORE else ""
        fix = f"{space}choose another place with {option}{remark}"
        raise UserError(f"cannot write: {_EXPLAINED[number]}", where=str(path), fix=fix, exit_code=1) from error


def no_link(path: str, flags: int) -> int:
    """Open a file that is written in place, as the `opener` of `open`, unless its name is a symbolic link or one of
    several: in a folder from elsewhere that could lead to any file of ours."""
    handle = os.open(path, (flags & ~os.O_TRUNC) | os.O_NOFOLLOW, 0o666)
    if os.fstat(handle).st_nlink > 1:
        os.close(handle)
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), path)
    if flags & os.O_TRUNC:
        os.ftruncate(handle, 0)
    return handle


def check_no_links(folder: Path, apart: Container[str] = ()) -> None:
    """Raise UserError unless a folder, if it is there, holds nothing but files and folders, at any depth, and is no
    symbolic link itself: what is read, written or removed in it would be elsewhere, and a pipe would never answer.
    apart: names in the folder whose content is not looked at."""
    waiting = [str(folder)]
    odd = str(folder) if os.path.islink(folder) else None
    while waiting and odd is None:
        with contextlib.suppress(OSError), os.scandir(at := waiting.pop()) as entries:  # gone meanwhile, or not ours
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting += [entry.path] if at != str(folder) or entry.name not in apart else []
                elif not entry.is_file(follow_symlinks=False):
                    odd = entry.path
    if odd is not None:
        kind = "a symbolic link is in the way" if os.path.islink(odd) else "something that is no file is in the way"
        fix = "put what it leads to in its place, or move it away; only the path of a whole store may be a link"
        raise UserError(f"{kind}: nothing in the folder of a run may lead elsewhere", where=odd, fix=fix)


def write_atomic(path: Path, data: str | bytes, option: str = STORE) -> None:
    """Write a file through a temporary neighbour, fsync and rename: readers see the old or the new file, never a part.
    option: what names another place on the command line, for the UserError where this one cannot be written."""
    payload = data.encode() if isinstance(data, str) else data
    with explain_write_errors(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_and_rename(path, payload)
        except FileNotFoundError:  # taken for what a killed process left: see `remove_leftovers`
            _write_and_rename(path, payload)


def _write_and_rename(path: Path, payload: bytes) -> None:
    hidden = _hidden(path)
    try:
        with open(hidden, "xb") as file:  # unlike tempfile's, with the rights that the umask leaves
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(hidden)
        raise


def _hidden(path: Path) -> Path:
    """A new name beside a file or folder, for as long as it is written or removed."""
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys in the order given."""
    write_atomic(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def commit_folder(target: Path) -> Iterator[Path]:
    """A scratch folder that becomes `target` (replacing it) when the block ends without an error,
    and vanishes otherwise. Raises UserError with exit code BUSY when another process writes this target."""
    with explain_write_errors(target), exclusive(target):
        remove_leftovers(target.parent.resolve(), f".{glob.escape(target.name)}.{_HEX}")
        scratch = _hidden(target)
        scratch.mkdir()
        try:
            yield scratch
            replace_folder(scratch, target)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise


def replace_folder(finished: Path, target: Path) -> None:
    """Give a finished folder the name of another one, which goes if it is there, and stays where that fails."""
    hidden = _hidden(target)
    with contextlib.suppress(FileNotFoundError):
        os.replace(target, hidden)
    try:
        os.replace(finished, target)
    except OSError:
        with contextlib.suppress(OSError):
            os.replace(hidden, target)
        raise
    _remove(hidden)


def remove_folder(path: Path) -> None:
    """Remove a folder, if it is there, under a hidden name: a kill in the middle leaves no half of it under its own."""
    hidden = _hidden(path)
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, hidden)
        _remove(hidden)


def _remove(path: Path) -> None:
    """Remove a folder, or a link to one but not what it leads to; what cannot be removed stays."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def remove_leftovers(folder: Path, *patterns: str) -> None:
    """Remove files and folders that a killed process left, by glob patterns. No link is followed on the way to them,
    nor by the removal. For who holds the lock that all who write them hold; of the others `write_atomic` alone takes no
    harm."""
    deepest = max(pattern.count("/") for pattern in patterns)
    if not folder.is_dir():
        return
    for root, folders, files, handle in os.fwalk(folder):
        depth = len(Path(root).relative_to(folder).parts)
        fitting = [pattern for pattern in patterns if pattern.count("/") == depth]
        for name in [*folders, *files]:
            path = os.path.relpath(os.path.join(root, name), folder)
            if any(fnmatch.fnmatchcase(path, pattern) for pattern in fitting):
                with contextlib.suppress(OSError):
                    if stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
                        shutil.rmtree(name, dir_fd=handle)
                    else:
                        os.unlink(name, dir_fd=handle)
        if depth == deepest:
            folders.clear()


def take_lock(path: Path) -> IO[str] | None:
    """An exclusive lock, held until the returned file is closed or this process dies; None where another process has
    it. POSIX record locks, which network file systems have too; a file with a heartbeat would not do: after a kill on
    another machine only clocks could tell it from a live one's. Raises UserError on a file system without them."""
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+")
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return None
        what = f"the file system does not lock files: {error.strerror}"
        fix = (
            "mount it with locks (Lustre with the option `flock`; NFS with a lock service, or with `nolock` or "
            "`local_lock=posix` where this machine alone uses it), or choose a place on another one"
        )
        raise UserError(what, where=str(path), fix=fix, exit_code=1) from error
    return handle


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Keep other processes out of the same block for a file or folder, by a lock beside it that goes with the block.
    Raises UserError with exit code BUSY when one is in it."""
    lock = path.with_name(f".{path.name}.lock")
    while (handle := take_lock(lock)) and not _is(handle, lock):
        handle.close()  # another process removed it after we had opened it
    if handle is None:
        raise UserError("another process writes this", where=str(path), fix="try again when it is done", exit_code=BUSY)
    with handle:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _is(handle: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def parse_json(text: str | bytes, **hooks: Any) -> Any:
    """The value of a JSON text, from bytes in UTF-8. hooks: of `json.loads`.

    Raises ValueError, in words for people, also for one that is nested more deeply than any of ours, which no code that
    walks it survives, and for half a character (\\ud800), which nothing can print."""
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise ValueError("not text in UTF-8") from None
    if text.count("[") + text.count("{") > _DEEPEST:
        brackets = re.findall(r"[\[\]{}]", re.sub(r'"[^"\\]*(?:\\.[^"\\]*)*"?', "", text))
        if max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0) > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} deep")
    try:
        value = json.loads(text, **hooks)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"not JSON from {line}column {error.colno} on" if text.strip() else "empty") from None
    if re.search(r"\\u[dD][89a-fA-F]", text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"half a character: {error.object[error.start]!a}") from None
    return value


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file; a half-written last line (a killed writer) is left out. Splits on newline only."""
    if not path.exists():
        return []
    rows = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            fault = "" if isinstance(row, dict) else "is not a JSON object"
        except ValueError as error:
            if number == len(lines) - 1:
                continue
            fault = f"is not JSON of ours: {error}"
        if fault:
            raise UserError(
                f"line {number + 1} {fault}", where=str(path), fix="repair that line, or restore the file from a copy"
            )
        rows.append(row)
    return rows


def content_hash(value: Any, length: int = 12) -> str:
    """Hex digest of a JSON-able value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes. A large file is read again only when its size, time stamps or inode changed."""
    state = path.stat()
    if state.st_size < _SMALL:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return _large_digest(path.absolute(), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)


@lru_cache(maxsize=1024)
def _large_digest(path: Path, *state: int) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
