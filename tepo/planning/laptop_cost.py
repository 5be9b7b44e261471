"""Cost of a laptop study, from what runs in the store have cost; without any, from a probe of two steps.

A unit costs its start, its steps and its benchmarks (a validation is a part of one), each the median of measured runs
of the same data and work a step, by objective where it was measured.
"""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from tepo.common.errors import RunFailed
from tepo.config.run_config import RunConfig
from tepo.launch.forkserver import job_environment, start
from tepo.launch.local import command, last_line
from tepo.store.cost import Cost, work_of
from tepo.store.find_run import costs
from tepo.store.run_folder import RunFolder
from tepo.studies.plan import Unit
from tepo.training.resources.estimate import measuring_time, step_time
from tepo.training.resources.gpu_cards import GIB, Card
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import Gpus, memory
from tepo.training.run import Run

_PROBE_STEPS = 2
_RESULT = 40_000  # bytes of a benchmark's samples


def cpu_seconds(units: Iterable[Unit], known: Sequence[Cost]) -> float:
    """CPU seconds of what is to do of these units."""
    return sum(
        seconds_of(unit.config, unit.row.objective or "", steps_to_train(unit), unit.to_measure(), known)
        for unit in units
        if not unit.done()
    )


def seconds_of(config: RunConfig, objective: str, steps: int, benchmarks: float, known: Sequence[Cost]) -> float:
    """CPU seconds of so many steps and benchmarks of a run, by the known costs of runs like it."""
    like = [cost for cost in known if cost.prices(config)]
    trained, measured = [cost for cost in like if cost.steps], [cost for cost in like if cost.benchmarks]
    same = [cost for cost in trained if cost.objective == objective] or trained
    seconds = median([cost.startup_s for cost in like] or [0.0])
    seconds += steps * median([cost.training_s / cost.steps for cost in same] or [0.0])
    return seconds + benchmarks * median([cost.measuring_s / cost.benchmarks for cost in measured] or [0.0])


def disk_bytes(units: Iterable[Unit]) -> float:
    """Bytes that stay of what is to do: a run's weights are as large as its base's."""
    from tepo.policy.model.model_location import is_gone, resolve

    total = 0.0
    for unit in (unit for unit in units if not unit.done()):
        if steps_to_train(unit) and not is_gone(unit.config.model.path):
            folder = Path(resolve(unit.config.model.path))
            total += sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        total += _RESULT * len(unit.missing_benchmarks())
    return total


def steps_to_train(unit: Unit) -> int:
    """Steps that a unit still has to train."""
    return 0 if unit.trained() else unit.config.train.steps - len(unit.folder.metrics())


def unpriced(units: Iterable[Unit], known: Sequence[Cost]) -> list[Unit]:
    """One unit of each data and work that no measured run prices; one that trains, where there is one."""
    new: dict[tuple[str, str], Unit] = {}
    for unit in sorted(units, key=Unit.trained):
        if not any(cost.prices(unit.config) and (cost.steps or unit.trained()) for cost in known):
            new.setdefault((unit.config.data.name, work_of(unit.config)), unit)
    return list(new.values())


def probe(unit: Unit) -> Cost:
    """Train two steps of a unit in a scratch store and measure it on one benchmark, to have something to price by."""
    with tempfile.TemporaryDirectory() as scratch:
        small = (f"train.steps={_PROBE_STEPS}", f"data.benchmarks=[{unit.config.data.benchmarks[0]}]")
        words = command(replace(unit, folder=RunFolder(Path(scratch) / unit.id), overrides=(*unit.overrides, *small)))
        log = RunFolder(Path(scratch)).log
        process = start(words, log, job_environment())  # as the study will start it
        process.join()
        if process.exitcode:
            raise RunFailed(f"the probe failed: {last_line(log)}", where=" ".join(words[3:]))
        return costs(Path(scratch))[0]


# a core as the closed form knows cards: chosen so that runs of the laptop's base and of SmolLM2-135M come out
_CORE = Card("core", 4 * GIB, 4e11, 1e10)
_START, _PROCESS = 3.0, 0.6 * GIB  # seconds and bytes of Python and torch


def closed_form_seconds(run: Run, steps: int, *, measured: bool) -> float:
    """CPU seconds of so many steps of a run like which none was measured, and of all its benchmarks: to a factor of
    four. Raises UserError for a model of unknown shape."""
    here = Gpus(card=_CORE)
    run, _ = fill(run, here)
    seconds = steps * step_time(run, here, memory(run, here)).total
    return _START + seconds + (measuring_time(run, here) if measured else 0.0)


def core_memory(run: Run) -> float:
    """Bytes of main memory at the peak of a run on a core. Raises UserError as `closed_form_seconds` does."""
    run, _ = fill(run, Gpus())
    needed = memory(run)
    return needed.peak - needed.context + _PROCESS
