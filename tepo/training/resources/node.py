"""Main memory of a node, which a job asks a scheduler for."""

from dataclasses import replace

from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import Shape, number_bytes
from tepo.training.engine.backends import shares_weights
from tepo.training.resources.disk import run_disk
from tepo.training.resources.gpu_cards import GIB
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import Gpus, memory

PROCESS = 8 * GIB  # of each rank: Python, torch, CUDA, NCCL, vLLM, its part of the grader; assumed
ALARM = 4 * GIB  # of weights up to this size the gap alarm of each rank keeps two copies (tepo.sampling.gap)


def node_memory(config: RunConfig, shape: Shape, gpus: Gpus) -> float:
    """Bytes at the peak: while the model is loaded, or when a checkpoint is copied beside what is offloaded and what
    the gap alarm keeps. Each rank copies what it writes: under ZeRO 3 too no rank holds all weights. gpus: how many;
    their size counts for nothing here, so where the ZeRO stage is left open it is the one that takes the most, and an
    optimiser that may be offloaded is."""
    engine = config.engine
    stages = (2, 3) if engine.zero_stage is None else (engine.zero_stage,)
    offload = engine.offload is not False and engine.optimizer == "adamw"
    engines = (replace(engine, zero_stage=stage, offload=offload) for stage in stages)
    return max(_node_memory(replace(config, engine=engine), shape, gpus) for engine in engines)


def _node_memory(config: RunConfig, shape: Shape, gpus: Gpus) -> float:
    config, _ = fill(config, shape, Gpus(gpus.ranks, gpus.node_ranks), reference=False)
    footprint, here = memory(config, shape, gpus), gpus.node_ranks
    weights = number_bytes(config.model.dtype) * shape.parameters
    # under ZeRO 3 weights pass by a tensor at a time, and the alarm keeps none
    alarm = 0 if config.engine.zero_stage == 3 or weights > ALARM or shares_weights(config) else 2 * weights * here
    saving = footprint.host + alarm + run_disk(config, shape).checkpoint * here / gpus.ranks
    return max(footprint.load_host, saving) + PROCESS * here
