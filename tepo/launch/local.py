"""Units on this machine: each runs as its own `tepo` process with one thread or its own GPUs, N side by side; the store
says how far each came. Trained ones that one engine can measure share a process.

A child's output goes to `<run>/log.txt`. One that fails is reported and the others go on. Ctrl-C ends the children,
whose next start resumes. A scheduler's request to stop is passed on to them.
"""

import contextlib
import os
import re
import shlex
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tepo.common import interpreter, signals
from tepo.common.errors import BUSY, UserError
from tepo.common.files import content_hash
from tepo.config.compose import compose
from tepo.launch.forkserver import devices, job_environment, on_gpus, start
from tepo.sampling.backends import sampler_backend
from tepo.store.run_folder import RunFolder
from tepo.studies.plan import Unit

Batch = tuple[Unit, ...]
"""Units that a process does one after another."""


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
    if unit.row.objective is None:
        return batch_command((unit,))
    what = ["train", "--validate" if unit.tuning else "--evaluate"][: 1 + measure]
    store = ("--store", str(unit.folder.parent))
    return interpreter.command("-m", "tepo_cli", *what, "--quiet", *store, *unit.as_typed())


def state(unit: Unit, running: bool = False) -> UnitProgress:
    """Read a unit's state from the store, once for all who ask for a part of it."""
    trained, missing = unit.trained(), len(unit.missing_benchmarks())
    steps = unit.steps if trained else 0
    if not trained:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a store that is a file: who writes says so
            steps = unit.in_store.metrics_file.read_bytes().count(b"\n")
    done = trained and not (unit.to_measure() if unit.tuning else missing)
    return UnitProgress(steps, len(unit.benchmarks) - missing, running, done)


def batches(units: Sequence[Unit], jobs: int) -> list[Batch]:
    """Every unit in a batch, in order. Those that can share an engine are dealt to at most `jobs` batches; any other
    unit is a batch by itself."""
    sharing = defaultdict[str, list[int]](list)  # indices of units
    for index, unit in enumerate(units):
        sharing[_engine(unit) or unit.id].append(index)
    dealt = [group[part::jobs] for group in sharing.values() for part in range(min(jobs, len(group)))]
    return [tuple(units[index] for index in batch) for batch in sorted(dealt)]


def _engine(unit: Unit) -> str | None:
    """A hash of what an engine must be to measure the unit. None where it is still to be trained, or where its sampler
    loads no engine: the embedded one, and servers, which go on from process to process."""
    config, backend = unit.config, sampler_backend(unit.config.sampler.kind)
    if unit.tuning or not unit.trained() or backend.shares_weights or backend.remote:
        return None
    model, train = asdict(config.model), config.train
    for name in ("lora_rank", "lora_alpha", "gradient_checkpointing"):  # of the training: what is measured is merged
        del model[name]
    parts: list[Any] = [model, asdict(config.sampler), config.engine.device, config.data.benchmarks]
    return content_hash([*parts, train.max_prompt_tokens, train.max_new_tokens])


def batch_command(batch: Batch) -> list[str]:
    """The command line that measures several units, or one base; a person can type it too."""
    runs = [shlex.join(["base" if unit.row.objective is None else "train", *unit.as_typed()]) for unit in batch]
    store = ("--store", str(batch[0].folder.parent))
    return interpreter.command("-m", "tepo_cli", "eval", "--quiet", *store, *(f"--model={run}" for run in runs))


def run_local(
    units: Sequence[Unit], jobs: int, gpus: int, watch: Callable[[dict[str, UnitProgress]], None]
) -> list[Failure]:
    """Run units, at most `jobs` processes at a time with `gpus` GPUs each, in order; those that only lack benchmarks
    share processes where they can share an engine. After two identical failures no more are started. `watch` gets the
    state of every unit about twice a second."""
    waiting, failures = batches(units, jobs), list[Failure]()
    active: dict[int, tuple[BaseProcess, Batch]] = {}
    states = {unit.id: state(unit) for unit in units}
    try:
        while waiting or active:
            for batch in list(waiting):
                if len(active) == jobs:
                    break
                waiting.remove(batch)
                busy = [unit for unit in batch if unit.in_store.busy()]  # another process on this store has it
                waiting += [(unit,) for unit in busy]
                states |= {unit.id: state(unit) for unit in batch}
                left = tuple(unit for unit in batch if unit not in busy and not states[unit.id].done)
                if left:
                    slot = next(index for index in range(jobs) if index not in active)
                    environment = job_environment() | devices(slot, gpus)
                    if len(left) > 1 and gpus > 1:  # one process, with a server on each GPU as where ranks have trained
                        environment["LOCAL_WORLD_SIZE"] = str(gpus)
                    words = on_gpus(command(left[0]), gpus) if len(left) == 1 else batch_command(left)
                    active[slot] = start(words, left[0].in_store.log, environment), left
            for slot in [slot for slot, (process, _) in active.items() if process.exitcode is not None]:
                process, batch = active.pop(slot)
                states |= {unit.id: state(unit) for unit in batch}
                missing = [unit for unit in batch if process.exitcode or not states[unit.id].done]
                if len(batch) > 1:  # each by itself: it is measured then, or says why not
                    waiting += [(unit,) for unit in missing if not states[unit.id].done]
                elif process.exitcode == BUSY:  # it was taken between the look and the start
                    waiting.append(batch)
                else:
                    failures += [Failure(unit, why(unit, f"exit code {process.exitcode}")) for unit in missing]
            if same_twice(failures):
                waiting = []
            for _, batch in active.values():  # which one process does in order
                states |= {unit.id: state(unit) for unit in batch}
                current = next((unit.id for unit in batch if not states[unit.id].done), batch[-1].id)
                states[current] = replace(states[current], running=True)
            watch(states)
            if active or waiting:
                time.sleep(0.5)
    except signals.Stopped:
        for process, batch in active.values():
            signals.pass_on(process.pid or 0, launcher=gpus > 1 and len(batch) == 1)
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
        now = RunFolder.of_base(config) if unit.row.objective is None else RunFolder.of(config)
        if now.path.name != unit.id:
            return f"a file that it is made of changed after the plan: it is run {now.path.name} now; start again"
    if not unit.in_store.log.exists():
        return f"{outcome}, and its log is gone: was the store deleted or moved under it?"
    return last_line(unit.in_store.log) or outcome


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
