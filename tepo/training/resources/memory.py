"""Memory of a GPU in a run, part by part, before anything is started.

Counted from shapes: what autograd keeps per token of a Llama-like model here; what engine and sampler hold per weight
they declare themselves (`tepo.training.engine.backends`, `tepo.sampling.backends`).
tests/integration/test_memory_peaks.py holds it against the allocations of real updates of small models.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tepo.common.errors import UserError
from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import Shape, number_bytes
from tepo.sampling.backends import Room, SamplerMemory, longest_sequence, sampler_backend
from tepo.training.engine.backends import engine_backend, shares_weights

GIB = 2**30
_PLAN = "`tepo plan` and `tepo train --dry-run` name what makes it fit; sampler.memory_fraction overrules the plan"
_BUDGET = (
    128 << 20
)  # bytes of logits above which tepo.policy.logprobs.softmax_at_temperature goes through the vocabulary in parts
TAKEN = "perf/gpu_gib_"  # metrics: and a section of the step; how much of the GPU is taken, by all processes
CONTEXT = 1.5 * GIB  # CUDA, its libraries, communicators
_BEGUN = 0.5 * GIB  # of these, what a process has taken that only asks how much is free: assumed
FRAGMENTS = 0.05  # of what updates allocate and free: assumed, with segments that grow (tepo.policy.model.allocator)
# vLLM captures graphs of at most 512 rows (config/vllm.py, before Blackwell): of more each step waits for the host
_ROWS = (*range(512, 128, -32), *range(128, 32, -8), *range(32, 0, -4))
_ROWS_ON_CPU, _ROWS_IN_FULL = 256, 1024  # without a GPU; of a sampler whose rows keep room for the longest sequence
_UNDER_WAY = 8  # a row has room for an eighth of the longest sequence: half of the mean that plans assume
_SURE = 0.9  # of the memory: activations that are not made again are most of a plan, and counted by hand


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of a run: `ranks` in all, `node_ranks` of them on a node, `bytes` of memory each (0: a CPU), of which other
    processes hold `taken`."""

    ranks: int = 1
    node_ranks: int = 1
    bytes: float = 0.0
    taken: float = 0.0


def held_by_others(size: float, free: float, reserved: float) -> float:
    """Bytes of a GPU that other processes hold: what is not free, less this process's own beginnings of CUDA and what
    torch has `reserved` for it."""
    return max(0.0, size - free - reserved - _BEGUN)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one GPU by part.

    reference: a frozen copy of the first policy, where the objective needs it. step: what only the optimiser's step
    takes, when activations are gone. load: the trainer's own, while its model is loaded. gather: the largest tensor
    that is gathered on its way to the sampler. sampler: what it takes while it draws; of it `cache` is for keys and
    values, None where these lie on GPUs of the sampler's own. merged: with LoRA, the copy of merged weights that it is
    given. asleep: what is left of it during updates. host: main memory of a node, with the weights that a sampler draws
    with beside the updates, see `tepo.training.rollout.prefetch`; load_host: while the model is loaded.
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
    context: float = CONTEXT

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


def fill(config: RunConfig, shape: Shape, gpus: Gpus, reference: bool) -> tuple[RunConfig, dict[str, str]]:
    """The configuration with the settings that it leaves open (null) chosen for these GPUs, and by key what was chosen
    and why. Results depend on none of it but for rounding."""
    why: dict[str, str] = {}
    if config.sampler.max_rows is None:

        def look(trial: RunConfig) -> tuple[float | None, float]:
            found = memory(_with(trial, "model", gradient_checkpointing=True), shape, gpus, reference=reference)
            return found.cache, max(found.sampling, found.syncing)

        config, why["sampler.max_rows"] = _rows(config, shape, gpus, look)
    if config.model.gradient_checkpointing is None:
        plain, said = _with(config, "model", gradient_checkpointing=False), "false: no GPU"
        if gpus.bytes:  # only where the updates do not fit without it for sure
            room, without = _SURE * (gpus.bytes - gpus.taken), memory(plain, shape, gpus, reference=reference).updating
            fits = without <= room
            said = f"{str(not fits).lower()}: the updates take {without / GIB:.1f} of {room / GIB:.1f} GiB without"
            plain = plain if fits else _with(config, "model", gradient_checkpointing=True)
        config, why["model.gradient_checkpointing"] = plain, said
    return config, why


def _with(config: RunConfig, section: str, **settings: Any) -> RunConfig:
    """The configuration with other settings of a section."""
    return replace(config, **{section: replace(getattr(config, section), **settings)})


def _rows(
    config: RunConfig, shape: Shape, gpus: Gpus, look: Callable[[RunConfig], tuple[float | None, float]]
) -> tuple[RunConfig, str]:
    """The most rows that the cache has room for. look: bytes of the cache and of all while a configuration samples."""
    if not gpus.bytes:
        return _with(config, "sampler", max_rows=_ROWS_ON_CPU), f"{_ROWS_ON_CPU}: no GPU"
    full_rows = sampler_backend(config.sampler.kind).full_rows  # it takes no more of them than fit
    each = sequence_bytes(config, shape) / _UNDER_WAY
    for rows in (_ROWS_IN_FULL, *_ROWS) if full_rows else _ROWS:
        trial = _with(config, "sampler", max_rows=rows)
        cache, peak = look(trial)
        if cache is None:
            return trial, f"{rows}: the sampler has GPUs of its own"
        if peak <= gpus.bytes - gpus.taken and (full_rows or cache >= rows * each):
            break
    assert cache is not None
    if full_rows:
        return trial, f"{rows}: at most, of those that fit into {cache / GIB:.1f} GiB of cache"
    room = f"{cache / GIB:.1f} GiB of cache, {each / 2**20:.0f} MiB a row"
    return trial, f"{rows}: {room}" + (", and no graph holds more" if rows == _ROWS[0] else "")


def memory(config: RunConfig, shape: Shape, gpus: Gpus = Gpus(), *, reference: bool = False) -> Memory:
    """The memory of each GPU, with what the configuration leaves open chosen for it. reference: the objective keeps a
    copy of the first policy."""
    config, _ = fill(config, shape, gpus, reference)
    size = number_bytes(config.model.dtype)
    engine = engine_backend(config.engine.kind).memory(config, shape, gpus.ranks, gpus.node_ranks)
    activations, logits = _activations(config, shape, size)
    lora, shared = config.model.lora_rank > 0, shares_weights(config)
    kept = size * shape.parameters * (reference and not lora)
    merged = size * shape.layers * shape.layer_parameters * (lora and not shared)
    remote = sampler_backend(config.sampler.kind).remote
    earlier = gpus.node_ranks * engine.weights * (config.train.staleness > 0 and remote and not lora)
    room = Room(gpus.bytes, engine.weights + kept + engine.optimiser + merged + CONTEXT + gpus.taken, shared)
    sampler = sampler_backend(config.sampler.kind).memory(config, shape, room)
    return Memory(
        weights=engine.weights,
        reference=kept,
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
    )


def with_share(config: RunConfig, shape: Shape, gpus: Gpus, *, reference: bool = False) -> RunConfig:
    """The configuration with the share of a GPU that the plan leaves to the sampler, where none is given.

    Raises UserError where that does not hold the weights and a sequence of full length.
    """
    config, _ = fill(config, shape, gpus, reference)
    found = memory(config, shape, gpus, reference=reference)
    return _given(config, shape, gpus, SamplerMemory(found.sampler, found.cache))


def with_all(config: RunConfig, shape: Shape, gpus: Gpus) -> RunConfig:
    """The same for a sampler that has the GPU for itself, as when a finished run is measured. On a CPU only its rows
    are chosen, where they are open."""
    room = Room(gpus.bytes, CONTEXT + gpus.taken, shared=False)

    def look(trial: RunConfig) -> tuple[float | None, float]:
        found = sampler_backend(trial.sampler.kind).memory(trial, shape, room)
        return found.cache, found.total + CONTEXT

    if config.sampler.max_rows is None:
        config, _ = _rows(config, shape, gpus, look)
    if not gpus.bytes:
        return config
    return _given(config, shape, gpus, sampler_backend(config.sampler.kind).memory(config, shape, room))


def _given(config: RunConfig, shape: Shape, gpus: Gpus, found: SamplerMemory) -> RunConfig:
    if config.sampler.memory_fraction is not None:
        return config
    if found.cache is not None and found.cache < sequence_bytes(config, shape):
        what = f"{found.total / GIB:.1f} of {gpus.bytes / GIB:.0f} GiB are left for the sampler: too little for"
        what += " the weights, its own work and the cache of one sequence"
        fix = _PLAN
        if gpus.taken:
            what += f"; other processes hold {gpus.taken / GIB:.1f} GiB"
            fix = f"end them, or choose another GPU with CUDA_VISIBLE_DEVICES; {_PLAN}"
        raise UserError(what, where=f"sampler={config.sampler.kind}", fix=fix)
    share = int(1000 * found.total / gpus.bytes) / 1000
    return replace(config, sampler=replace(config.sampler, memory_fraction=share))


def sequence_bytes(config: RunConfig, shape: Shape) -> int:
    """Keys and values of one prompt and response of full length, on each GPU of an engine."""
    numbers = shape.cut_cache_numbers(config.sampler.tensor_parallel)
    return number_bytes(config.model.dtype) * numbers * longest_sequence(config)


def layer_bytes(shape: Shape, size: int) -> int:
    """Bytes that autograd keeps per token of one layer; size: bytes of a number.

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
    # of the largest micro-batch: the setting, or the longest sequence where that is more
    tokens, rank = max(config.engine.micro_batch_tokens, longest_sequence(config)), config.model.lora_rank
    layer = tokens * (layer_bytes(shape, size) + 7 * rank * size)
    temporary = tokens * 2 * size * (shape.inner + shape.hidden)
    if config.model.gradient_checkpointing:
        kept, work = tokens * shape.layers * shape.hidden * size, layer + temporary
    else:
        kept, work = shape.layers * layer, temporary
    # The output layer: three times the logits in float32 where they are small, else a tile of them; and gradients.
    whole, gradients = 4.0 * tokens * shape.vocabulary, size * (shape.head_parameters + 2 * tokens * shape.hidden)
    output = 3 * whole + gradients
    if whole > _BUDGET:
        tile = whole / -(-whole // _BUDGET)
        output = tile * (1.5 if size == 2 else 1.0) + gradients + 4 * tokens * shape.hidden * (size == 2)
    logits = tokens * (4 + 2 * size) * shape.hidden + output  # the last norm is still there
    logits -= size * shape.head_parameters * (rank > 0)  # no gradient of the output matrix
    return kept + max(work - logits, 0), logits
