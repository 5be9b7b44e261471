"""Files that appear whole or not at all (commit by rename), and stable hashes of what they hold."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from tepo.errors import UserError

_DEEPEST = 100  # levels of JSON
_SMALL = 1 << 20  # bytes: such a file is read as fast as its time stamp can be trusted, which counts in milliseconds
_EXPLAINED = {
    errno.ENOSPC: "the disk is full",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "no permission to write",
    errno.EDQUOT: "the disk quota is used up",
}
_EXPLAINED |= {
    errno.EPERM: "no permission to write",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EEXIST: "a file is in the way",
    errno.EISDIR: "a folder is in the way",
}
_EXPLAINED |= {
    errno.ENOENT: "the folder is gone, or cannot be made there",
    errno.EFBIG: "the file is larger than the system allows",
    errno.ELOOP: "links in the path go round in a circle",
}

STORE = "--store DIR"


@contextlib.contextmanager
def explain_write_errors(path: Path, option: str = STORE) -> Iterator[None]:
    """Turn a full or read-only disk into a UserError that names the place, and the option that names another."""
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else _native_errno(error)
        if number not in _EXPLAINED:
            raise
        space = "free some space, or " if number in (errno.ENOSPC, errno.EDQUOT) else ""
        kept = "; finished steps are kept" if option == STORE else ""
        fix = f"{space}choose another place with {option}{kept}"
        raise UserError(f"cannot write: {_EXPLAINED[number]}", where=str(path), fix=fix, exit_code=1) from error


def _native_errno(error: Exception) -> int | None:
    """The error number in the text of a native library's exception, such as SafetensorError's "(os error 28)"."""
    number = re.search(r"os error (\d+)", str(error))
    return int(number.group(1)) if number else None


def write_atomic(path: Path, data: str | bytes, option: str = STORE) -> None:
    """Write a file through a temporary neighbour, fsync and rename: readers see the old or the new file, never a part.

    option: what names another place on the command line, for the UserError where this one cannot be written.
    """
    payload = data.encode() if isinstance(data, str) else data
    with explain_write_errors(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys in the order given."""
    write_atomic(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def commit_folder(target: Path) -> Iterator[Path]:
    """A scratch folder that becomes `target` (replacing it) when the block ends without an error,
    and vanishes otherwise."""
    with explain_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            yield scratch
            os.chmod(scratch, 0o755)
            if target.exists():
                aside = scratch.with_name(scratch.name + ".old")
                os.replace(target, aside)
                os.replace(scratch, target)
                shutil.rmtree(aside, ignore_errors=True)
            else:
                os.replace(scratch, target)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, from bytes in UTF-8. Raises ValueError, in words for people, also for one that is
    nested more deeply than any of ours, which no code that walks it survives, and for half a character (\\ud800), which
    nothing can print."""
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise ValueError("not text in UTF-8") from None
    if text.count("[") + text.count("{") > _DEEPEST and _depth(text) > _DEEPEST:
        raise ValueError(f"nested more than {_DEEPEST} deep")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"not JSON from {line}column {error.colno} on" if text.strip() else "empty") from None
    if re.search(r"\\u[dD][89a-fA-F]", text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"half a character: {error.object[error.start]!a}") from None
    return value


def _depth(text: str) -> int:
    brackets = re.findall(r"[\[\]{}]", re.sub(r'"[^"\\]*(?:\\.[^"\\]*)*"', "", text))
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0)


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
        except ValueError as error:
            if number < len(lines) - 1:
                what = f"line {number + 1} is not JSON of ours: {error}"
                raise UserError(what, where=str(path), fix="repair or delete that line") from None
            continue
        if not isinstance(row, dict):
            raise UserError(
                f"line {number + 1} is not a JSON object", where=str(path), fix="repair or delete that line"
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
