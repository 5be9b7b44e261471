"""Costs of runs: each process that trains or measures adds its CPU seconds to the run's `cost.json`."""

from dataclasses import dataclass
from pathlib import Path

from tepo.common.errors import UserError
from tepo.common.files import parse_json
from tepo.config.run_config import RunConfig

_SIZES = ("prompts_per_step", "samples_per_prompt", "max_rounds", "max_new_tokens", "mini_batch_prompts", "epochs")

_NUMBERS = ("steps", "benchmarks", "cpu_s", "training_s", "measuring_s", "tokens", "core_s")


@dataclass(frozen=True)
class Cost:
    """Cost of one process of a run: CPU seconds in all, of which in training steps (core_s of them in sampling,
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

    def prices(self, config: RunConfig) -> bool:
        """Tell whether a run of this configuration costs as much a step, a benchmark and a start."""
        return self.data == config.data.name and (not self.work or self.work == work_of(config))

    @property
    def startup_s(self) -> float:
        return max(self.cpu_s - self.training_s - self.measuring_s, 0.0)


def work_of(config: RunConfig) -> str:
    """Key of what a step takes its time for: the model and the sizes of a rollout and its updates."""
    return " ".join([config.model.path, *(f"{size}={getattr(config.train, size)}" for size in _SIZES)])


def read_costs(file: Path) -> list[Cost]:
    """The cost of each process in a run's `cost.json`. Raises UserError when the file is damaged."""
    try:
        costs = [Cost(**entry) for entry in parse_json(file.read_bytes())]
        if not all(isinstance(getattr(cost, name), int | float) for cost in costs for name in _NUMBERS):
            raise TypeError("a word where a number belongs")
        return costs
    except (FileNotFoundError, NotADirectoryError):  # the second: a store that became a file
        return []
    except (ValueError, TypeError) as error:
        what = f"the record of what the run has cost is damaged: {error}"
        fix = "move it away: prices are then based on the other runs"
        raise UserError(what, where=str(file), fix=fix) from None
