"""Local slots: each unit runs as its own `tepo` process with one thread, N side by side; the store says how far each came.

A child's output goes to `<run>/log.txt`. One that fails is reported and the others go on. Ctrl-C ends the children, whose
next start resumes.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tepo.files import explain_write_errors
from tepo.studies.plan import Unit
from tepo.training.run_folder import BUSY, RunFolder

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}
_BUSY_WAIT = 2.0  # seconds


@dataclass(frozen=True)
class Failure:
    """A unit that did not end well and the last line it wrote."""

    unit: Unit
    message: str


@dataclass(frozen=True)
class State:
    """How far a unit is: steps trained and benchmarks measured, of how many."""

    steps: int
    total_steps: int
    benchmarks: int
    total_benchmarks: int
    running: bool


def command(unit: Unit) -> list[str]:
    """The command line that trains and measures a unit; a person can type it too."""
    base = [sys.executable, "-m", "tepo_cli"]
    if unit.row.objective is None:
        return [*base, "base", *unit.overrides, f"store={unit.folder.parent}", "--quiet"]
    return [*base, "train", *unit.overrides, f"store={unit.folder.parent}", "--evaluate", "--quiet"]


def state(unit: Unit, running: bool) -> State:
    """Read a unit's state from the store."""
    total = 0 if unit.row.objective is None else unit.config.train.steps
    steps = total if unit.trained() else _lines(unit.folder / "metrics.jsonl")
    wanted = len(unit.config.data.benchmarks)
    return State(steps, total, wanted - len(unit.missing_benchmarks()), wanted, running)


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def run_local(units: Sequence[Unit], jobs: int, watch: Callable[[dict[str, State]], None] = lambda states: None, poll: float = 0.25) -> list[Failure]:
    """Run units, at most `jobs` at a time, in order. `watch` gets the state of every unit about four times a second."""
    waiting, failures = [(0.0, unit) for unit in units], []  # type: list[tuple[float, Unit]], list[Failure]
    active: dict[subprocess.Popen[bytes], Unit] = {}
    try:
        while waiting or active:
            ready = [entry for entry in waiting if entry[0] <= time.monotonic()]
            for entry in ready[: jobs - len(active)]:
                waiting.remove(entry)
                if RunFolder(entry[1].folder).busy():  # another process on this store has it: look again later
                    waiting.append((time.monotonic() + _BUSY_WAIT, entry[1]))
                elif not entry[1].done():
                    active[_start(entry[1])] = entry[1]
            for process in [process for process in active if process.poll() is not None]:
                unit = active.pop(process)
                if process.returncode == BUSY:  # it was taken between the look and the start
                    waiting.append((time.monotonic() + _BUSY_WAIT, unit))
                elif process.returncode or not unit.done():
                    failures.append(Failure(unit, last_line(unit.folder / "log.txt") or f"exit code {process.returncode}"))
            watch({unit.id: state(unit, unit in active.values()) for unit in units})
            if active or waiting:
                time.sleep(poll)
    finally:
        for process in active:
            process.send_signal(signal.SIGINT)
        for process in active:
            process.wait()
    return failures


def _start(unit: Unit) -> "subprocess.Popen[bytes]":
    with explain_write_errors(unit.folder):
        unit.folder.mkdir(parents=True, exist_ok=True)
        log = (unit.folder / "log.txt").open("ab")
    with log:
        # a session of its own: Ctrl-C reaches the parent alone, which then ends the children in order
        return subprocess.Popen(command(unit), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=job_environment(), start_new_session=True)


def job_environment() -> dict[str, str]:
    """Our environment with one thread a process; without the variables by which a launcher marks the ranks of its own job."""
    ours = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    return ours | ONE_THREAD


def last_line(path: Path) -> str:
    """The last line with text in a log, its error line if one follows the last start."""
    try:
        lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    except FileNotFoundError:
        return ""
    errors = [place for place, line in enumerate(lines) if line.startswith("error:")]
    return " ".join(lines[errors[-1] :])[:500] if errors else (lines[-1][:500] if lines else "")


def unfinished(units: Sequence[Unit]) -> list[Unit]:
    """Units that still need training or measuring."""
    return [unit for unit in units if not unit.done()]


def run_folders(store: Path) -> list[RunFolder]:
    """Every run in a store, by name."""
    return [RunFolder(path.parent) for path in sorted(store.glob("*/config.json"))] if store.is_dir() else []
