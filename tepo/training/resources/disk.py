"""Disk space that a run takes, and how far apart its checkpoints lie."""

from dataclasses import dataclass

from tepo.policy.model.shapes import number_bytes
from tepo.training.engine.backends.torch import MOMENTS_8BIT
from tepo.training.run import Run

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


def run_disk(run: Run) -> RunDisk:
    """Disk space of one run, from the sizes of its model. Raises UserError for a model of unknown shape."""
    model, engine, shape = run.config.model, run.config.engine, run.shape
    adapters = float(shape.adapter_parameters(model.lora_rank))
    trained, size = adapters or float(shape.parameters), number_bytes(model.dtype)
    moments = MOMENTS_8BIT if engine.optimizer == "adamw_8bit" else 8
    masters = 4 * (size == 2 or (engine.kind == "torch" and bool(engine.offload)))
    # peft's adapters lie beside the merged model, and stay
    checkpoints = 3 + run.config.train.keep_best  # the newest two, the best one, and one that is being written
    return RunDisk(size * (shape.parameters + adapters), (moments + masters) * trained, checkpoints)
