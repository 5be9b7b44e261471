"""Units on this machine: each runs as its own `tepo` process with one thread or its own GPUs, N side by side; the store
says how far each came.

A child's output goes to `<run>/log.txt`. One that fails is reported and the others go on. Ctrl-C ends the children,
whose next start resumes. A scheduler's request to stop is passed on to them.
"""

import contextlib
import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from tepo.common import interpreter, signals
from tepo.common.errors import BUSY, UserError
from tepo.config.compose import compose
from tepo.launch.forkserver import devices, job_environment, on_gpus, start
from tepo.store.run_folder import RunFolder
from tepo.studies.plan import Unit


@dataclass(frozen=True)
class Failure:
    """A unit that did not end well and the last line it wrote."""

    unit: Unit
    message: str


@dataclass(frozen=True)
class UnitProgress:
    """Progress of a unit: steps trained and benchmarks measured, and whether all of it is there."""

    steps: int
    benchmarks: int
    running: bool
    done: bool


def same_twice(failures: Sequence[Failure]) -> bool:
    """Tell whether two runs failed with the same words, but for numbers and the run's name: others would, too."""
    words = [re.sub(r"\d+", "#", failure.message.replace(failure.unit.id, "")) for failure in failures]
    return len(set(words)) < len(words)


def command(unit: Unit, measure: bool = True) -> list[str]:
    """The command line that trains and measures a unit, or only trains it; a person can type it too."""
    store = ("--store", str(unit.store))
    if not unit.trains:
        model = f"--model={shlex.join(['base', *unit.as_typed()])}"
        return interpreter.command("-m", "tepo_cli", "eval", "--quiet", *store, model)
    what = ["train", unit.measured_by][: 1 + measure]
    return interpreter.command("-m", "tepo_cli", *what, "--quiet", *store, *unit.as_typed())


def state(unit: Unit, running: bool = False) -> UnitProgress:
    """Read a unit's state from the store, once for all who ask for a part of it."""
    trained, steps = unit.trained(), 0
    if trained:
        steps = unit.steps
    else:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a store that is a file: who writes says so
            steps = unit.folder.metrics_file.read_bytes().count(b"\n")
    measured = len(unit.benchmarks) - len(unit.missing_benchmarks())
    return UnitProgress(steps, measured, running, trained and not unit.to_measure())


def run_local(
    units: Sequence[Unit], jobs: int, gpus: int, watch: Callable[[dict[str, UnitProgress]], None]
) -> list[Failure]:
    """Run units, at most `jobs` processes at a time with `gpus` GPUs each, in order. After two identical failures no
    more are started. `watch` gets the state of every unit about twice a second."""
    waiting, failures = list(units), list[Failure]()
    active: dict[int, tuple[BaseProcess, Unit]] = {}
    states = {unit.id: state(unit) for unit in units}
    try:
        while waiting or active:
            for unit in list(waiting):
                if len(active) == jobs:
                    break
                waiting.remove(unit)
                states[unit.id] = state(unit)
                if unit.folder.busy():  # another process on this store has it
                    waiting.append(unit)
                elif not states[unit.id].done:
                    slot = next(index for index in range(jobs) if index not in active)
                    environment = job_environment() | devices(slot, gpus)
                    active[slot] = start(on_gpus(command(unit), gpus), unit.folder.log, environment), unit
            for slot in [slot for slot, (process, _) in active.items() if process.exitcode is not None]:
                process, unit = active.pop(slot)
                states[unit.id] = state(unit)
                if process.exitcode == BUSY:  # it was taken between the look and the start
                    waiting.append(unit)
                elif process.exitcode or not states[unit.id].done:
                    failures.append(Failure(unit, why(unit, f"exit code {process.exitcode}")))
            if same_twice(failures):
                waiting = []
            states |= {unit.id: state(unit, running=True) for _, unit in active.values()}
            watch(states)
            if active or waiting:
                time.sleep(0.5)
    except signals.Stopped:
        for process, _ in active.values():
            signals.pass_on(process.pid or 0, launcher=gpus > 1)
        raise
    except BaseException:
        for process, _ in active.values():
            os.kill(process.pid or 0, signal.SIGINT)
        raise
    finally:
        for process, _ in active.values():
            process.join()
    return failures


def why(unit: Unit, outcome: str) -> str:
    """The reason that a unit is not done though its process has ended; `outcome` where its log says nothing."""
    with contextlib.suppress(UserError):  # then the log says it too
        config = compose(unit.overrides)
        now = RunFolder.of(config) if unit.trains else RunFolder.of_base(config)
        if now.path.name != unit.id:
            return f"a file that it is made of changed after the plan: it is run {now.path.name} now; start again"
    log = unit.folder.log
    if not log.exists():
        return f"{outcome}, and its log is gone: was the store deleted or moved under it?"
    return last_line(log) or outcome


def last_line(path: Path) -> str:
    """The last line with text in a log, its error line if one follows the last start."""
    try:
        lines = [*filter(None, map(str.strip, path.read_text(encoding="utf-8", errors="replace").splitlines()))]
    except FileNotFoundError:
        return ""
    errors = [index for index, line in enumerate(lines) if line.startswith("error:")]
    return " ".join(lines[errors[-1] :] if errors else lines[-1:])[:500]


def unfinished(units: Sequence[Unit]) -> list[Unit]:
    """Units that still need training or measuring."""
    return [unit for unit in units if not unit.done()]
