"""Cost of a laptop study, from what runs in the store have cost; without any, from a probe of two steps.

The price of a unit is start-up + steps x seconds a step + benchmarks x seconds a benchmark (a validation is a part of
one), the medians over measured runs of the same data and the same work a step, by objective where it was measured.
"""

import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tepo.common.errors import RunFailed
from tepo.launch.forkserver import job_environment, start
from tepo.launch.local import command, last_line
from tepo.store.cost import Cost, work_of
from tepo.store.find_run import costs
from tepo.store.run_folder import RunFolder
from tepo.studies.plan import Unit

PROBE_STEPS = 2


@dataclass(frozen=True)
class Price:
    """Price of the units that are still to do. basis: how many measured runs stand behind it."""

    cpu_s: float
    tokens: float
    disk_bytes: float
    basis: str

    def plus(self, other: "Price", share: float) -> "Price":
        """With a share of another price added."""
        cpu, tokens = self.cpu_s + share * other.cpu_s, self.tokens + share * other.tokens
        return Price(cpu, tokens, self.disk_bytes + share * other.disk_bytes, self.basis)


def price(units: Iterable[Unit], known: Sequence[Cost], basis: str) -> Price:
    """CPU seconds, sampled tokens, and what stays on the disk of the units that are not done."""
    from tepo.policy.model.model_location import is_gone, resolve

    cpu = tokens = disk = 0.0
    for unit in (unit for unit in units if not unit.done()):
        objective = unit.row.objective or ""
        like = [cost for cost in known if cost.prices(unit.config)]
        trained = [cost for cost in like if cost.steps]
        same = [cost for cost in trained if cost.objective == objective] or trained
        steps = 0 if unit.trained() else unit.config.train.steps - len(unit.in_store.metrics())
        measured = [cost for cost in like if cost.benchmarks]
        cpu += _median(cost.startup_s for cost in like) + steps * _median(cost.training_s / cost.steps for cost in same)
        cpu += unit.to_measure() * _median(cost.measuring_s / cost.benchmarks for cost in measured)
        tokens += steps * _median(cost.tokens / cost.steps for cost in same)
        if steps and not is_gone(unit.config.model.path):  # a run's weights are as large as its base's
            folder = Path(resolve(unit.config.model.path))
            disk += sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        disk += 40_000 * len(unit.missing_benchmarks())
    return Price(cpu, tokens, disk, basis)


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
        small = [f"train.steps={PROBE_STEPS}", f"data.benchmarks=[{unit.config.data.benchmarks[0]}]"]
        words = [*command(unit), "--store", scratch, *small]
        log = RunFolder(Path(scratch)).log
        process = start(words, log, job_environment())  # as the study will start it
        process.join()
        if process.exitcode:
            raise RunFailed(f"the probe failed: {last_line(log)}", where=" ".join(words[3:]))
        return costs(Path(scratch))[0]


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.median(known) if known else 0.0
