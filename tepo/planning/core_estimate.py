"""Time and memory of a run on one core of a CPU in closed form, where no run like it was measured. Imports torch."""

from tepo.config.run_config import RunConfig
from tepo.objectives import load_objective
from tepo.policy.model.shapes import shape_of
from tepo.training.resources.estimate import measuring_time, step_time
from tepo.training.resources.gpu_cards import GIB, Card
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import Gpus, memory

# a core as the closed form knows cards: chosen so that runs of the laptop's base and of SmolLM2-135M come out
_CORE = Card("core", 4 * GIB, 4e11, 1e10)
_START, _PROCESS = 3.0, 0.6 * GIB  # seconds and bytes of Python and torch


def closed_form_seconds(config: RunConfig, steps: int, *, measured: bool) -> float:
    """CPU seconds of so many steps of a run like which none was measured, and of all its benchmarks: to a factor of
    four. Raises UserError for a model of unknown shape."""
    shape, here = shape_of(config.model.path), Gpus(card=_CORE)
    config, _ = fill(config, shape, here, reference=False)
    seconds = steps * step_time(config, shape, here, memory(config, shape, here)).total
    return _START + seconds + (measuring_time(config, shape, here) if measured else 0.0)


def core_memory(config: RunConfig) -> float:
    """Bytes of main memory at the peak of a run on a core. Raises UserError as `closed_form_seconds` does."""
    shape, here = shape_of(config.model.path), Gpus()
    config, _ = fill(config, shape, here, reference=False)
    needed = memory(config, shape, here, reference=load_objective(config.objective).needs.initial_policy)
    return needed.peak - needed.context + _PROCESS
