"""What a laptop study will cost, from what runs in the store have cost; without any, from a probe of two steps.

Each process that trains or measures adds its CPU seconds to the run's `cost.json`. The price of a unit is
start-up + steps x seconds a step + benchmarks x seconds a benchmark (a validation is a part of one), the medians over
measured runs of the same data and the same work a step, by objective where it was measured.
"""

import json
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tepo.config.schema import RunConfig
from tepo.errors import RunFailed, UserError
from tepo.files import write_json
from tepo.studies.dispatch import command, last_line
from tepo.studies.plan import Unit
from tepo.studies.slots import job_environment, start
from tepo.training.run_folder import RunFolder

PROBE_STEPS = 2
_SIZES = ("prompts_per_step", "samples_per_prompt", "max_rounds", "max_new_tokens", "mini_batch_prompts", "epochs")
_NUMBERS = ("steps", "benchmarks", "cpu_s", "training_s", "measuring_s", "tokens", "core_s")


@dataclass(frozen=True)
class Cost:
    """What one process spent on a run: CPU seconds in all, of which in training steps (core_s of them in sampling,
    log-probs and updates) and in benchmarks. benchmarks: a validation counts by its share of their responses."""

    data: str
    objective: str
    steps: int
    benchmarks: float
    cpu_s: float
    training_s: float
    measuring_s: float
    tokens: int
    core_s: float = 0.0
    work: str = ""  # `work_of` the run; empty in records of earlier versions, which price any

    def prices(self, unit: Unit) -> bool:
        """Whether the unit costs as much a step, a benchmark and a start."""
        return self.data == unit.config.data.name and (not self.work or self.work == work_of(unit.config))

    @property
    def startup_s(self) -> float:
        return max(self.cpu_s - self.training_s - self.measuring_s, 0.0)


@dataclass(frozen=True)
class Price:
    """Of the units that are still to do. basis: how many measured runs stand behind it."""

    cpu_s: float
    tokens: float
    disk_bytes: float
    basis: str

    def plus(self, other: "Price", share: float) -> "Price":
        """With a share of another price added."""
        cpu, tokens = self.cpu_s + share * other.cpu_s, self.tokens + share * other.tokens
        return Price(cpu, tokens, self.disk_bytes + share * other.disk_bytes, self.basis)


def work_of(config: RunConfig) -> str:
    """What one step takes its time for: the model and the sizes of a rollout and its updates."""
    return " ".join([config.model.path, *(f"{size}={getattr(config.train, size)}" for size in _SIZES)])


def record(run: RunFolder, cost: Cost) -> None:
    """Add a process's cost to the run's `cost.json`."""
    write_json(run.cost, [vars(entry) for entry in [*costs_of(run), cost]])


def costs(store: Path) -> list[Cost]:
    """Every recorded cost in a store."""
    return [cost for folder in store.glob("*/") for cost in costs_of(RunFolder(folder))]


def costs_of(run: RunFolder) -> list[Cost]:
    """Every recorded cost of a run. Raises UserError when its file is damaged."""
    try:
        costs = [Cost(**entry) for entry in json.loads(run.cost.read_text(encoding="utf-8"))]
        if not all(isinstance(getattr(cost, name), int | float) for cost in costs for name in _NUMBERS):
            raise TypeError("a word where a number belongs")
        return costs
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise UserError(
            f"the record of what the run has cost is damaged: {error}",
            where=str(run.cost),
            fix="delete it: prices are then based on the other runs",
        ) from None


def price(units: Iterable[Unit], known: Sequence[Cost], basis: str) -> Price:
    """CPU seconds, sampled tokens and disk of the units that are not done."""
    cpu = tokens = disk = 0.0
    for unit in (unit for unit in units if not unit.done()):
        objective = unit.row.objective or ""
        like = [cost for cost in known if cost.prices(unit)]
        trained = [cost for cost in like if cost.steps]
        same = [cost for cost in trained if cost.objective == objective] or trained
        steps = 0 if unit.trained() else unit.config.train.steps - len(unit.run.metrics())
        measured = [cost for cost in like if cost.benchmarks]
        cpu += _median(cost.startup_s for cost in like) + steps * _median(cost.training_s / cost.steps for cost in same)
        cpu += unit.to_measure() * _median(cost.measuring_s / cost.benchmarks for cost in measured)
        tokens += steps * _median(cost.tokens / cost.steps for cost in same)
        # two checkpoints of weights and Adam's two moments
        disk += 3 * _weight_bytes(unit) * 2 * bool(steps) + 40_000 * len(unit.missing_benchmarks())
    return Price(cpu, tokens, disk, basis)


def unpriced(units: Iterable[Unit], known: Sequence[Cost]) -> list[Unit]:
    """One unit of each data and work that no measured run prices; one that trains, where there is one."""
    new: dict[tuple[str, str], Unit] = {}
    for unit in sorted(units, key=Unit.trained):
        if not any(cost.prices(unit) and (cost.steps or unit.trained()) for cost in known):
            new.setdefault((unit.config.data.name, work_of(unit.config)), unit)
    return list(new.values())


def probe(unit: Unit) -> Cost:
    """Train two steps of a unit in a scratch store and measure it on one benchmark, to have something to price by."""
    with tempfile.TemporaryDirectory() as scratch:
        words = [
            *command(unit),
            "--store",
            scratch,
            f"train.steps={PROBE_STEPS}",
            f"data.benchmarks=[{unit.config.data.benchmarks[0]}]",
        ]
        log = RunFolder(Path(scratch)).log
        process = start(words, log, job_environment())  # as the study will start it
        process.join()
        if process.exitcode:
            raise RunFailed(f"the probe failed: {last_line(log)}", where=" ".join(words[3:]))
        return costs(Path(scratch))[0]


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.median(known) if known else 0.0


def _weight_bytes(unit: Unit) -> int:
    from tepo.policy.location import resolve

    folder = Path(resolve(unit.config.model.path))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) if folder.is_dir() else 0
