"""Main memory of a node in a run on GPUs, before anything is started: what a job asks a scheduler for."""

from dataclasses import replace

from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import Shape, number_bytes
from tepo.training.engine.backends import shares_weights
from tepo.training.resources.gpu_cards import GIB
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import Gpus, memory
from tepo.training.resources.run_disk import run_disk

PROCESS = 8 * GIB  # of each rank: Python, torch, CUDA, NCCL, vLLM, its part of the grader; assumed
ALARM = 4 * GIB  # of weights up to this size the gap alarm of each rank keeps two copies (tepo.sampling.gap)


def node_memory(config: RunConfig, shape: Shape, gpus: Gpus) -> float:
    """Bytes at the peak: while the model is loaded, or when a checkpoint is copied beside what is offloaded and what
    the gap alarm keeps. gpus: how many; their size counts for nothing here, so where the ZeRO stage is left open it is
    the one that takes the most."""
    stage = config.engine.zero_stage or 3
    config = replace(config, engine=replace(config.engine, zero_stage=stage))
    config, _ = fill(config, shape, Gpus(gpus.ranks, gpus.node_ranks), reference=False)
    found, here = memory(config, shape, gpus), gpus.node_ranks
    weights = number_bytes(config.model.dtype) * shape.parameters
    alarm = 0 if weights > ALARM or shares_weights(config) else 2 * weights * here
    saving = found.host + alarm + run_disk(config, shape).checkpoint * here / gpus.ranks
    return max(found.load_host, saving) + PROCESS * here
