"""Memory of a GPU in a run, part by part, before anything is started.

Counted from shapes: what autograd keeps per token of a Llama-like model here; what engine and sampler hold per weight
they declare themselves (`tepo.training.engine.backends`, `tepo.sampling.backends`).
tests/integration/test_memory_peaks.py holds it against the allocations of real updates of small models.
"""

import math
from dataclasses import dataclass

from tepo.config.run_config import RunConfig, chosen
from tepo.policy.logprobs.tile_budget import BUDGET, tile_budget
from tepo.policy.model.shapes import Shape, number_bytes, shape_of
from tepo.sampling.backends import Room, longest_sequence
from tepo.training.resources.gpu_cards import GIB, Card
from tepo.training.run import Run

TAKEN = "perf/gpu_gib_"  # metrics: and a section of the step; how much of the GPU is taken, by all processes
CONTEXT = 1.5 * GIB  # CUDA and its libraries
# of several ranks: NCCL's buffers of torch's group and of DeepSpeed's, 0.5 to 1 GiB each (NVIDIA/nccl#964: 544 and 688
# MB; deepspeedai/DeepSpeed#7680: about 0.5 GB)
COMMUNICATORS = 2 * 0.7 * GIB
_BEGUN = 0.5 * GIB  # of these, what a process has taken that only asks how much is free: assumed
FRAGMENTS = 0.05  # of what updates allocate and free: assumed, with segments that grow (tepo.policy.model.allocator)


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of a run: `ranks` in all, `node_ranks` of them on a node, `bytes` of memory each (0: a CPU), of which other
    processes hold `taken`. card: their kind, None for one whose figures are not known. host: bytes of main memory of a
    node."""

    ranks: int = 1
    node_ranks: int = 1
    bytes: float = 0.0
    taken: float = 0.0
    card: Card | None = None
    host: float = math.inf


def held_by_others(size: float, free: float, reserved: float) -> float:
    """Bytes of a GPU that other processes hold: what is not free, less this process's own beginnings of CUDA and what
    torch has `reserved` for it."""
    return max(0.0, size - free - reserved - _BEGUN)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one GPU by part.

    reference: a frozen copy of the first policy, where the objective needs it, and the teacher. step: what only the
    optimiser's step takes, when activations are gone. load: the trainer's own, while its model is loaded. gather: the
    largest tensor that is gathered on its way to the sampler. sampler: what it takes while it draws; of it `cache` is
    for keys and values, None where these lie on GPUs of the sampler's own. merged: with LoRA, the copy of merged
    weights that it is given. asleep: what is left of it during updates. host: main memory of a node, with the weights
    that a sampler draws with beside the updates, see `tepo.training.rollout.prefetch`; load_host: while the model is
    loaded.
    """

    weights: float
    reference: float
    gradients: float
    optimiser: float
    activations: float
    logits: float
    step: float
    load: float
    gather: float
    sampler: float
    merged: float
    cache: float | None
    asleep: float
    host: float
    load_host: float
    context: float

    @property
    def resident(self) -> float:
        """Bytes that the trainer holds all the time."""
        return self.weights + self.reference + self.optimiser + self.context

    @property
    def loading(self) -> float:
        """The peak until the optimiser has its states; the sampler is opened after it."""
        return self.context + max(self.load, self.resident - self.context)

    @property
    def sampling(self) -> float:
        """The peak of the rollout, refills and all: what is under way shares one cache."""
        return self.resident + self.sampler + self.merged

    @property
    def syncing(self) -> float:
        """The peak while the sampler, whose cache is not there yet, takes new weights."""
        return self.resident + self.sampler + self.merged - (self.cache or 0.0) + self.gather

    @property
    def fragments(self) -> float:
        """Bytes that lie unused between the tensors of updates."""
        return FRAGMENTS * (self.gradients + max(self.activations + self.logits, self.step))

    @property
    def updating(self) -> float:
        """The peak of the updates, in which the sampler has given its memory back."""
        moving = self.gradients + max(self.activations + self.logits, self.step)
        return self.resident + moving + self.fragments + self.asleep

    @property
    def peak(self) -> float:
        return max(self.loading, self.sampling, self.syncing, self.updating)


def memory(run: Run, gpus: Gpus = Gpus()) -> Memory:
    """The memory of each GPU in a run that leaves nothing open."""
    config, shape, reference = run.config, run.shape, run.needs.initial_policy
    size = number_bytes(config.model.dtype)
    engine = run.engine.memory(config, shape, gpus.ranks, gpus.node_ranks)
    activations, logits = _activations(config, shape, size, tile_budget(gpus.bytes))
    lora, shared = config.model.lora_rank > 0, run.shares_weights
    frozen_bytes = size * shape.parameters * (reference and not lora)
    if config.model.teacher:
        frozen_bytes += size * shape_of(config.model.teacher).parameters
    merged = size * shape.layers * shape.layer_parameters * (lora and not shared)
    context = CONTEXT + COMMUNICATORS * (gpus.ranks > 1)
    earlier = gpus.node_ranks * engine.weights * (config.train.staleness > 0 and run.sampler.remote and not lora)
    room = Room(gpus.bytes, engine.weights + frozen_bytes + engine.optimiser + merged + context + gpus.taken, shared)
    sampler = run.sampler.memory(config, shape, room)
    return Memory(
        weights=engine.weights,
        reference=frozen_bytes,
        gradients=engine.gradients,
        optimiser=engine.optimiser,
        activations=activations + engine.gathered,
        logits=logits,
        step=engine.step,
        load=engine.loading,
        gather=0.0 if shared else float(size * max(shape.head_parameters, shape.layer_parameters)),
        sampler=sampler.total,
        merged=float(merged),
        cache=sampler.cache,
        asleep=sampler.asleep,
        host=engine.host + earlier,
        load_host=engine.load_host,
        context=context,
    )


def sequence_bytes(run: Run) -> int:
    """Keys and values of one prompt and response of full length, on each GPU of an engine."""
    numbers = run.shape.cut_cache_numbers(chosen(run.config.sampler.tensor_parallel))
    return number_bytes(run.config.model.dtype) * numbers * longest_sequence(run.config)


def layer_bytes(shape: Shape, size: int) -> int:
    """Bytes that autograd keeps per token of one layer; size: bytes of a number.

    Of each norm its input in float32, the normalised input and the output (in float32 the first is the residual stream
    itself); queries, keys and values as attention takes them, its output twice; four tensors of the feed-forward.
    """
    norms = 2 * (4 + 2 * size) * shape.hidden
    attention = size * shape.head_dim * (3 * shape.heads + 2 * shape.kv_heads)
    return norms + attention + 4 * size * shape.inner


def _activations(config: RunConfig, shape: Shape, size: int, budget: int) -> tuple[float, float]:
    """Bytes kept for the backward of one micro-batch, and what the output layer adds at the peak. budget: bytes of a
    tile of logits.

    The peak is either where the backward begins, at the logits, or in the last layer. With checkpointing only the
    inputs of layers are kept, and one layer at a time is made again. LoRA also keeps the products with A of a layer's
    seven matrices; its output matrix is frozen.
    """
    # of the largest micro-batch: the setting, or the longest sequence where that is more
    tokens, rank = max(chosen(config.engine.micro_batch_tokens), longest_sequence(config)), config.model.lora_rank
    layer = tokens * (layer_bytes(shape, size) + 7 * rank * size)
    temporary = tokens * 2 * size * (shape.inner + shape.hidden)
    if config.model.gradient_checkpointing:
        saved_bytes, work = tokens * shape.layers * shape.hidden * size, layer + temporary
    else:
        saved_bytes, work = shape.layers * layer, temporary
    # The output layer: three times the logits in float32 where they are small, else a tile of them; and gradients.
    whole, gradients = 4.0 * tokens * shape.vocabulary, size * (shape.head_parameters + 2 * tokens * shape.hidden)
    output = 3 * whole + gradients
    if whole > BUDGET:
        tile = whole / -(-whole // budget)
        output = tile * (1.5 if size == 2 else 1.0) + gradients + 4 * tokens * shape.hidden * (size == 2)
    logits = tokens * (4 + 2 * size) * shape.hidden + output  # the last norm is still there
    logits -= size * shape.head_parameters * (rank > 0)  # no gradient of the output matrix
    return saved_bytes + max(work - logits, 0), logits
