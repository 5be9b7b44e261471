"""Steps with sampling engines of 1, 2, 4 and 8 GPUs (`sampler.tensor_parallel`), by the queue with balanced updates.

Each engine has the share of its GPUs that the planner leaves it, and decodes at most `sampler.max_rows` rows. Training
is the same whatever the size.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tepo.config.compose import compose
from tepo.config.run_config import chosen
from tepo.planning.simulator import schedules, updates
from tepo.planning.simulator.cards import NODE, SYNC, Decoding, Training
from tepo.planning.simulator.schedules import Setup
from tepo.planning.simulator.workload import Workload
from tepo.policy.model.shapes import shape_of
from tepo.training.resources.gpu_cards import H100
from tepo.training.resources.memory import Gpus, memory

MODELS = ("qwen2.5-7b", "qwen3-14b", "qwen2.5-32b")
Size = Literal[1, 2, 4, 8]
FIXED = ("sampler.max_rows=256", "model.gradient_checkpointing=true", "train.checkpoint_every=4")  # on all sizes
SIZES: tuple[Size, ...] = (1, 2, 4, 8)


@dataclass(frozen=True)
class EngineSize:
    """Seconds of a step on so many H100 with engines of `size` GPUs. rows: sequences of full length in the cache of an
    engine; least: the rollout's lower bound; busy: of the engines."""

    model: str
    gpus: int
    size: int
    rows: int
    rollout: float
    least: float
    busy: float
    total: float


def engine_sizes(model: str, gpus: int, workload: Workload) -> Iterator[EngineSize]:
    """Every size that cuts the heads of the model evenly."""
    plain = compose(["scale=paper", f"model={model}", *FIXED])
    shape, train = shape_of(plain.model.path), plain.train
    before = math.ceil(train.prompts_per_step / 0.5)  # of the groups are mixed
    for size in filter(shape.divisible, SIZES):
        config = replace(plain, sampler=replace(plain.sampler, tensor_parallel=size))
        share = memory(config, shape, Gpus(gpus, NODE, H100.bytes)).sampler / H100.bytes
        decoding = Decoding(H100, shape, share, chosen(plain.sampler.max_rows), size)
        setup = Setup(plain, decoding, gpus // size, workload)  # a simulated rank is an engine
        rollout = schedules.by_queue(setup, 0, before)
        done = updates.ours(Training(H100, shape, gpus), plain, rollout.lengths)
        total = rollout.seconds + done.logprobs + done.updates + SYNC
        rows = decoding.capacity // (train.max_prompt_tokens + train.max_new_tokens)
        yield EngineSize(model, gpus, size, rows, rollout.seconds, rollout.least, rollout.busy, total)
