"""Disk space that a run takes, and how far apart its checkpoints lie."""

from dataclasses import dataclass

from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import Shape, number_bytes, shape_of
from tepo.training.engine.backends.torch import MOMENTS_8BIT

BETWEEN, WRITES = 600.0, 10  # seconds without a checkpoint at least, and times what the last one took to be written
ROOM = 0.5  # of the main memory that is free, for the copies of all ranks of a machine


def interval(write: float) -> float:
    """Seconds from one checkpoint to the next where no number of steps is asked for, by the seconds that the last one
    took: on a slow disk a run would do little else."""
    return max(BETWEEN, WRITES * write)


GB = 1e9  # as file systems and prices count


@dataclass(frozen=True, slots=True)
class RunDisk:
    """Bytes of a run. weights: of its model, which stay. resuming: of what a checkpoint holds beside them. checkpoints:
    while it trains, one of them being written."""

    weights: float
    resuming: float
    checkpoints: int

    @property
    def checkpoint(self) -> float:
        return self.weights + self.resuming

    @property
    def peak(self) -> float:
        return self.checkpoints * self.checkpoint


def run_disk(config: RunConfig, shape: Shape | None = None) -> RunDisk:
    """Disk space of one run, from the sizes of its model; shape: where the caller has it. Raises UserError for a model
    of unknown shape."""
    model, engine = config.model, config.engine
    shape = shape or shape_of(model.path)
    adapters = float(shape.adapter_parameters(model.lora_rank))
    trained, size = adapters or float(shape.parameters), number_bytes(model.dtype)
    moments = MOMENTS_8BIT if engine.optimizer == "adamw_8bit" else 8
    masters = 4 * (size == 2 or (engine.kind == "torch" and bool(engine.offload)))
    # peft's adapters lie beside the merged model, and stay
    checkpoints = 3 + config.train.keep_best  # the newest two, the best one, and one that is being written
    return RunDisk(size * (shape.parameters + adapters), (moments + masters) * trained, checkpoints)
