"""Main memory of a node, which a job asks a scheduler for, and disk space: what a run takes beside its GPUs."""

from dataclasses import dataclass, replace

from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import Shape, number_bytes, shape_of
from tepo.training.engine.backends import shares_weights
from tepo.training.engine.backends.torch import MOMENTS_8BIT
from tepo.training.resources.gpu_cards import GIB
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import Gpus, memory

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
    masters = 4 * (size == 2 or (engine.kind == "torch" and engine.offload))
    # peft's adapters lie beside the merged model, and stay
    checkpoints = 3 + config.train.keep_best  # the newest two, the best one, and one that is being written
    return RunDisk(size * (shape.parameters + adapters), (moments + masters) * trained, checkpoints)


PROCESS = 8 * GIB  # of each rank: Python, torch, CUDA, NCCL, vLLM, its part of the grader; assumed
ALARM = 4 * GIB  # of weights up to this size the gap alarm of each rank keeps two copies (tepo.sampling.gap)


def node_memory(config: RunConfig, shape: Shape, gpus: Gpus) -> float:
    """Bytes at the peak: while the model is loaded, or when a checkpoint is copied beside what is offloaded and what
    the gap alarm keeps. gpus: how many; their size counts for nothing here, so where the ZeRO stage is left open it is
    the one that takes the most."""
    stage = config.engine.zero_stage or 3
    config = replace(config, engine=replace(config.engine, zero_stage=stage))
    config, _ = fill(config, shape, Gpus(gpus.ranks, gpus.node_ranks), reference=False)
    footprint, here = memory(config, shape, gpus), gpus.node_ranks
    weights = number_bytes(config.model.dtype) * shape.parameters
    alarm = 0 if weights > ALARM or shares_weights(config) else 2 * weights * here
    saving = footprint.host + alarm + run_disk(config, shape).checkpoint * here / gpus.ranks
    return max(footprint.load_host, saving) + PROCESS * here
