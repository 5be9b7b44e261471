"""Where the memory of a GPU goes in a run, part by part, before anything is started.

Counted from shapes: what autograd keeps per token of a Llama-like model here; what engine and sampler hold per weight
they declare themselves (`tepo.training.engines`, `tepo.sampling.samplers`).
tests/unit/training/test_memory.py holds it against the allocations of real updates of small models.
"""

from dataclasses import dataclass

from tepo.config.schema import RunConfig
from tepo.policy.shapes import Shape, number_bytes
from tepo.sampling.samplers import Room, longest_sequence, sampler_backend
from tepo.training.engines import engine_backend, shares_weights

GIB = 2**30
_BUDGET = 128 << 20  # bytes of logits above which tepo.policy.fused goes through the vocabulary in parts
_CONTEXT = 1.5 * GIB  # CUDA, its libraries, fragmentation


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of a run: `ranks` in all, `node_ranks` of them on a node, `bytes` of memory each (0: a CPU)."""

    ranks: int = 1
    node_ranks: int = 1
    bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one GPU by part.

    reference: a frozen copy of the first policy, where the objective needs it. step: what only the optimiser's step
    takes, when activations are gone. sampler: what it takes while it draws, with the copy of merged weights that it is
    given with LoRA; of it `cache` is for keys and values, None where these lie on GPUs of the sampler's own. host: main
    memory of a node.
    """

    weights: float
    reference: float
    gradients: float
    optimiser: float
    activations: float
    logits: float
    step: float
    sampler: float
    cache: float | None
    host: float
    context: float = _CONTEXT

    @property
    def resident(self) -> float:
        """What the trainer holds all the time."""
        return self.weights + self.reference + self.optimiser + self.context

    @property
    def updating(self) -> float:
        """The peak of the updates, in which the sampler has given its memory back."""
        return self.resident + self.gradients + max(self.activations + self.logits, self.step)

    @property
    def sampling(self) -> float:
        """The peak of the rollout."""
        return self.resident + self.sampler

    @property
    def peak(self) -> float:
        return max(self.updating, self.sampling)


def memory(config: RunConfig, shape: Shape, gpus: Gpus = Gpus(), *, reference: bool = False) -> Memory:
    """The memory of each GPU. reference: the objective keeps a copy of the first policy."""
    size = number_bytes(config.model.dtype)
    engine = engine_backend(config.engine.kind).memory(config, shape, gpus.ranks, gpus.node_ranks)
    activations, logits = _activations(config, shape, size)
    lora, shared = config.model.lora_rank > 0, shares_weights(config)
    kept = size * shape.parameters * (reference and not lora)
    room = Room(gpus.bytes, engine.weights + kept + engine.optimiser + _CONTEXT, shared)
    sampler = sampler_backend(config.sampler.kind).memory(config, shape, room)
    merged = size * shape.layers * shape.layer_parameters * (lora and not shared)
    return Memory(
        engine.weights,
        kept,
        engine.gradients,
        engine.optimiser,
        activations,
        logits,
        engine.step,
        sampler.total + merged,
        sampler.cache,
        engine.host,
    )


def tokens_at_once(config: RunConfig) -> int:
    """Tokens of the largest micro-batch: the setting, or the longest sequence where that is more."""
    return max(config.engine.micro_batch_tokens, longest_sequence(config))


def layer_bytes(shape: Shape, size: int) -> int:
    """What autograd keeps per token of one layer; size: bytes of a number.

    Of each norm its input in float32, the normalised input and the output (in float32 the first is the residual stream
    itself); queries, keys and values as attention takes them, its output twice; four tensors of the feed-forward.
    """
    norms = 2 * (4 + 2 * size) * shape.hidden
    attention = size * shape.head_dim * (3 * shape.heads + 2 * shape.kv_heads)
    return norms + attention + 4 * size * shape.inner


def _activations(config: RunConfig, shape: Shape, size: int) -> tuple[float, float]:
    """Bytes kept for the backward of one micro-batch, and what the output layer adds at the peak.

    The peak is either where the backward begins, at the logits, or in the last layer. With checkpointing only the
    inputs of layers are kept, and one layer at a time is made again. LoRA also keeps the products with A of a layer's
    seven matrices; its output matrix is frozen.
    """
    tokens, rank = tokens_at_once(config), config.model.lora_rank
    layer = tokens * (layer_bytes(shape, size) + 7 * rank * size)
    temporary = tokens * 2 * size * (shape.inner + shape.hidden)
    if config.model.gradient_checkpointing:
        kept, work = tokens * shape.layers * shape.hidden * size, layer + temporary
    else:
        kept, work = shape.layers * layer, temporary
    logits = tokens * (4 + 2 * size) * shape.hidden + _logits(shape, size, tokens)  # the last norm is still there
    logits -= size * shape.head_parameters * (rank > 0)  # no gradient of the output matrix
    return kept + max(work - logits, 0), logits


def _logits(shape: Shape, size: int, tokens: int) -> float:
    """The output layer: three times the logits in float32 where they are small, else a tile of them; and gradients."""
    whole, gradients = 4.0 * tokens * shape.vocabulary, size * (shape.head_parameters + 2 * tokens * shape.hidden)
    if whole <= _BUDGET:
        return 3 * whole + gradients
    tile = whole / -(-whole // _BUDGET)
    return tile * (1.5 if size == 2 else 1.0) + gradients + 4 * tokens * shape.hidden * (size == 2)
