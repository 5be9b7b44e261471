"""Disk space of a run: checkpoints while it trains, and weights when it has finished."""

from dataclasses import dataclass

from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import Shape, number_bytes, shape_of

GB = 1e9  # as file systems and prices count
_MOMENTS_8BIT = 2 * (1 + 4 / 256)  # bytes of both moments of a number: one each, and a float32 scale for 256 of them


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
    moments = _MOMENTS_8BIT if engine.optimizer == "adamw_8bit" else 8
    masters = 4 * (size == 2 or (engine.kind == "torch" and engine.offload))
    # peft's adapters lie beside the merged model, and stay
    kept = 3 + config.train.keep_best  # the newest two, the best one, and one that is being written
    return RunDisk(size * (shape.parameters + adapters), (moments + masters) * trained, kept)
