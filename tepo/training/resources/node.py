"""Main memory of a node, which a job asks a scheduler for."""

from tepo.policy.model.shapes import number_bytes
from tepo.training.resources.disk import run_disk
from tepo.training.resources.gpu_cards import GIB
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import Gpus, memory
from tepo.training.run import Run

PROCESS = 8 * GIB  # of each rank: Python, torch, CUDA, NCCL, vLLM, its part of the grader; assumed
ALARM = 4 * GIB  # of weights up to this size the gap alarm of each rank keeps two copies (tepo.sampling.gap)


def node_memory(run: Run, gpus: Gpus) -> float:
    """Bytes at the peak: while the model is loaded, or when a checkpoint is copied beside what is offloaded and what
    the gap alarm keeps. Each rank copies what it writes: under ZeRO 3 too no rank holds all weights. gpus: how many;
    their size counts for nothing here, so where the ZeRO stage is left open it is the one that takes the most, and an
    optimiser that may be offloaded is."""
    engine = run.config.engine
    stages = (2, 3) if engine.zero_stage is None else (engine.zero_stage,)
    offload = engine.offload is not False and engine.optimizer == "adamw"
    run = run.having("engine.offload", offload)
    return max(_node_memory(run.having("engine.zero_stage", stage), gpus) for stage in stages)


def _node_memory(run: Run, gpus: Gpus) -> float:
    run, _ = fill(run, Gpus(gpus.ranks, gpus.node_ranks))
    footprint, here = memory(run, gpus), gpus.node_ranks
    weights = number_bytes(run.config.model.dtype) * run.shape.parameters
    # under ZeRO 3 weights pass by a tensor at a time, and the alarm keeps none
    alarm = 0 if run.config.engine.zero_stage == 3 or weights > ALARM or run.shares_weights else 2 * weights * here
    saving = footprint.host + alarm + run_disk(run).checkpoint * here / gpus.ranks
    return max(footprint.load_host, saving) + PROCESS * here
