"""Where the memory of a GPU goes in a run, part by part, before anything is started.

Counted from shapes: what autograd keeps per token of a Llama-like model, and what engine and sampler hold per weight.
tests/unit/studies/test_memory.py holds it against the allocations of real updates of small models.
"""

from dataclasses import dataclass

from tepo.config.schema import RunConfig
from tepo.sampling.cache_size import CPU_BYTES, gpu_cache_bytes, row_bytes
from tepo.studies.shapes import Shape

GIB = 2**30
_BUDGET = 128 << 20  # bytes of logits above which tepo.policy.fused goes through the vocabulary in parts
_BUCKET = 500_000_000  # numbers that DeepSpeed reduces at once: kept in bfloat16, sent in float32
_SUB_GROUP = 1_000_000_000  # numbers that ZeRO-3 updates at once
_CONTEXT = 1.5 * GIB  # CUDA, its libraries, fragmentation
_SAMPLER_WORK = 1.5 * GIB  # activations and CUDA graphs of vLLM, out of its own share


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one GPU by part.

    reference: a frozen copy of the first policy, where the objective needs it. step: what only the optimiser's step
    takes, when activations are gone. sampler: what it takes while it draws; of it `cache` is for keys and values. host:
    main memory of a node.
    """

    weights: float
    reference: float
    gradients: float
    optimiser: float
    activations: float
    logits: float
    step: float
    sampler: float
    cache: float
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


def memory(
    config: RunConfig,
    shape: Shape,
    *,
    ranks: int = 1,
    node_ranks: int = 1,
    device_bytes: float = 0.0,
    reference: bool = False,
) -> Memory:
    """The memory of each of `ranks` GPUs of `device_bytes`, `node_ranks` of them on a node."""
    size = 4 if config.model.dtype == "float32" else 2
    weights, gradients, optimiser, step = _states(config, shape, size, ranks)
    activations, logits = _activations(config, shape, size)
    kept = size * shape.parameters * reference
    sampler, cache = _sampler(config, shape, size, device_bytes, weights + kept + optimiser + _CONTEXT)
    host = _host(config, shape, size, ranks, node_ranks)
    return Memory(weights, kept, gradients, optimiser, activations, logits, step, sampler, cache, host)


def tokens_at_once(config: RunConfig) -> int:
    """Tokens of the largest micro-batch: the setting, or the longest sequence where that is more."""
    return max(config.engine.micro_batch_tokens, config.train.max_prompt_tokens + config.train.max_new_tokens)


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
    inputs of layers are kept, and one layer at a time is made again.
    """
    tokens = tokens_at_once(config)
    layer, temporary = tokens * layer_bytes(shape, size), tokens * 2 * size * (shape.inner + shape.hidden)
    if config.model.gradient_checkpointing:
        kept, work = tokens * shape.layers * shape.hidden * size, layer + temporary
    else:
        kept, work = shape.layers * layer, temporary
    logits = tokens * (4 + 2 * size) * shape.hidden + _logits(shape, size, tokens)  # the last norm is still there
    return kept + max(work - logits, 0), logits


def _logits(shape: Shape, size: int, tokens: int) -> float:
    """The output layer: three times the logits in float32 where they are small, else a tile of them; and gradients."""
    whole, gradients = 4.0 * tokens * shape.vocabulary, size * (shape.head_parameters + 2 * tokens * shape.hidden)
    if whole <= _BUDGET:
        return 3 * whole + gradients
    tile = whole / -(-whole // _BUDGET)
    return tile * (1.5 if size == 2 else 1.0) + gradients + 4 * tokens * shape.hidden * (size == 2)


def _states(config: RunConfig, shape: Shape, size: int, ranks: int) -> tuple[float, float, float, float]:
    """Bytes of weights, gradients, optimiser (AdamW's two moments, float32 masters) and of the step alone."""
    n = float(shape.parameters)
    optimiser = (12 if size == 2 else 8) * n
    if config.engine.kind == "torch":
        return size * n, 4 * n, optimiser, 0.0
    stage = config.engine.zero_stage
    if stage == 0:
        return size * n, 4 * n, optimiser, 0.0
    optimiser = (12 * n) / ranks  # ZeRO keeps masters in float32 too
    bucket = 6 * min(_BUCKET, n)
    gradients = 4 * n / ranks + bucket if stage >= 2 else 4 * n + bucket
    step = 4 * (min(_SUB_GROUP, n / ranks) if stage == 3 else n / ranks)
    weights = size * n
    if stage == 3:  # a shard; the output matrix and two layers whole
        weights = size * (n / ranks + shape.head_parameters + 2 * shape.layer_parameters)
    if config.engine.offload:
        optimiser, step = 0.0, 0.0
        gradients = bucket
        weights -= size * n / ranks if stage == 3 else 0.0
    return weights, gradients, optimiser, step


def _sampler(config: RunConfig, shape: Shape, size: int, device_bytes: float, resident: float) -> tuple[float, float]:
    """Bytes of the sampler while it draws, and those of them that are its cache. resident: what the trainer holds
    meanwhile."""
    if config.sampler.kind == "vllm":
        share = config.sampler.memory_fraction * device_bytes
        return share, max(share - size * shape.parameters - _SAMPLER_WORK, 0.0)
    if config.sampler.kind == "vllm_server":
        return 0.0, 0.0
    length = config.train.max_prompt_tokens + config.train.max_new_tokens
    row = row_bytes(shape.cache_numbers, size, length, gpu=device_bytes > 0)
    copies = 1 if config.engine.kind == "torch" else 2  # of the layers' weights beside the trainer's
    copied = copies * size * shape.parameters
    room = gpu_cache_bytes(device_bytes - resident - copied, device_bytes) if device_bytes else CPU_BYTES
    cache = max(1, min(config.sampler.max_rows, room // row)) * row  # one row at least, whether it fits or not
    return copied + cache, float(cache)


def _host(config: RunConfig, shape: Shape, size: int, ranks: int, node_ranks: int) -> float:
    """Main memory of a node: what is offloaded, and the full copy of the weights that each rank makes at a sync under
    ZeRO-3."""
    if config.engine.kind == "torch":
        return 0.0
    offloaded = (
        (16 + size * (config.engine.zero_stage == 3)) * shape.parameters * node_ranks / ranks
        if config.engine.offload
        else 0.0
    )
    return offloaded + (size * shape.parameters * node_ranks if config.engine.zero_stage == 3 else 0.0)
