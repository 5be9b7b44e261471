"""Units on this machine: each runs as its own `tepo` process with one thread or its own GPUs, N side by side; the store
says how far each came.

A child's output goes to `<run>/log.txt`. One that fails is reported and the others go on. Ctrl-C ends the children,
whose next start resumes. A scheduler's request to stop is passed on to them.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from tepo import stopping
from tepo.config.compose import compose
from tepo.errors import UserError
from tepo.studies.plan import Unit
from tepo.studies.slots import devices, job_environment, start, under_torchrun
from tepo.training.run_folder import BUSY, RunFolder

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
    what = ["base"] if unit.row.objective is None else ["train", "--validate" if unit.tuning else "--evaluate"]
    return [sys.executable, "-m", "tepo_cli", *what, "--quiet", "--store", str(unit.folder.parent), *unit.overrides]


def state(unit: Unit, running: bool) -> State:
    """Read a unit's state from the store."""
    total = 0 if unit.row.objective is None else unit.config.train.steps
    steps = total if unit.trained() else _lines(unit.run.metrics_file)
    wanted = len(unit.benchmarks)
    return State(steps, total, wanted - len(unit.missing_benchmarks()), wanted, running)


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except (FileNotFoundError, NotADirectoryError):  # the second: the store is a file, which whoever writes there says
        return 0


def launch(unit: Unit, gpus: int) -> list[str]:
    """The command of a unit on one machine: as it is on one device, under torchrun on several."""
    words = command(unit)
    return words if gpus <= 1 else under_torchrun(words, gpus, "--standalone")


def run_local(
    units: Sequence[Unit],
    jobs: int,
    watch: Callable[[dict[str, State]], None] = lambda states: None,
    gpus: int = 0,
    poll: float = 0.5,
) -> list[Failure]:
    """Run units, at most `jobs` at a time with `gpus` GPUs each, in order.

    `watch` gets the state of every unit about twice a second.
    """
    waiting, failures = [(0.0, unit) for unit in units], []  # type: list[tuple[float, Unit]], list[Failure]
    active: dict[int, tuple[BaseProcess, Unit]] = {}
    states = {unit.id: state(unit, False) for unit in units}
    try:
        while waiting or active:
            ready = [entry for entry in waiting if entry[0] <= time.monotonic()]
            for entry in ready[: jobs - len(active)]:
                waiting.remove(entry)
                if entry[1].run.busy():  # another process on this store has it: look again later
                    waiting.append((time.monotonic() + _BUSY_WAIT, entry[1]))
                elif entry[1].done():
                    states[entry[1].id] = state(entry[1], False)
                else:
                    slot = next(index for index in range(jobs) if index not in active)
                    active[slot] = _start(entry[1], slot, gpus), entry[1]
            for slot in [slot for slot, (process, _) in active.items() if process.exitcode is not None]:
                process, unit = active.pop(slot)
                if process.exitcode == BUSY:  # it was taken between the look and the start
                    waiting.append((time.monotonic() + _BUSY_WAIT, unit))
                elif process.exitcode or not unit.done():
                    failures.append(Failure(unit, why(unit, f"exit code {process.exitcode}")))
                states[unit.id] = state(unit, False)
            states |= {unit.id: state(unit, True) for _, unit in active.values()}
            watch(states)
            if active or waiting:
                time.sleep(poll)
    except stopping.Stopped:
        for process, _ in active.values():
            stopping.pass_on(process.pid or 0, launcher=gpus > 1)
        raise
    except BaseException:
        for process, _ in active.values():
            os.kill(process.pid or 0, signal.SIGINT)
        raise
    finally:
        for process, _ in active.values():
            process.join()
    return failures


def _start(unit: Unit, slot: int, gpus: int) -> BaseProcess:
    return start(launch(unit, gpus), unit.run.log, job_environment() | devices(slot, gpus))


def why(unit: Unit, outcome: str) -> str:
    """Why a unit is not done though its process has ended. outcome: what to say where its log says nothing."""
    with contextlib.suppress(UserError):  # then the log says it too
        config = compose(unit.overrides)
        now = RunFolder.of_base(config) if unit.row.objective is None else RunFolder.of(config)
        if now.path.name != unit.id:
            return f"a file that it is made of changed after the plan: it is run {now.path.name} now; start again"
    return last_line(unit.run.log) or outcome


def last_line(path: Path) -> str:
    """The last line with text in a log, its error line if one follows the last start."""
    try:
        lines = [
            line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
    except FileNotFoundError:
        return ""
    errors = [index for index, line in enumerate(lines) if line.startswith("error:")]
    return " ".join(lines[errors[-1] :])[:500] if errors else (lines[-1][:500] if lines else "")


def unfinished(units: Sequence[Unit]) -> list[Unit]:
    """Units that still need training or measuring."""
    return [unit for unit in units if not unit.done()]
