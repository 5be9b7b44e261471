"""GPUs that a run may be planned on, and how long a step and a benchmark take there under stated assumptions.

Nothing here was measured on these machines: peak figures are the makers', the shares of them that a run reaches, the
lengths of responses and the prices are assumptions (`ASSUMPTIONS` says them in words and is printed with every plan).
"""

from dataclasses import dataclass

from tepo.config.schema import RunConfig
from tepo.policy.shapes import Shape, number_bytes
from tepo.problems.benchmarks import load_benchmark
from tepo.sampling.samplers import longest_sequence, sampler_backend
from tepo.training.memory import GIB, Memory

UTILISATION = 0.35  # of the peak operations, in log-probs and updates
BANDWIDTH_SHARE = 0.6  # of the memory's bandwidth, in decoding
RESPONSE_SHARE = 0.25  # mean response, of train.max_new_tokens
PROMPT_TOKENS = 200  # mean prompt
KEPT_SHARE = 0.5  # of the groups, mixed and so kept
HOST_BANDWIDTH = 50e9  # bytes a second of main memory, for the optimiser of each GPU
LINK = 20e9  # bytes a second between main memory and a GPU, pinned
ASSUMPTIONS = (
    f"assumed: responses of {RESPONSE_SHARE:.0%} of train.max_new_tokens "
    f"and prompts of {PROMPT_TOKENS} tokens on average, {KEPT_SHARE:.0%} of the groups mixed, "
    f"{UTILISATION:.0%} of peak operations in updates, {BANDWIDTH_SHARE:.0%} of peak bandwidth in decoding; "
    "with sampler.margin=1 prompts that are drawn again wait for one more longest response; "
    f"an offloaded optimiser moves {HOST_BANDWIDTH / 1e9:.0f} GB/s in main memory and {LINK / 1e9:.0f} to its GPU; "
    "checkpoints, grading and weight transfer take no time"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs of one kind.

    bytes, operations (dense bf16, a second) and bandwidth (bytes a second) of one, its assumed price in dollars an
    hour, main memory of a node.
    """

    gpu: str
    nodes: int
    node_gpus: int
    bytes: float
    operations: float
    bandwidth: float
    price: float
    host: float

    @property
    def ranks(self) -> int:
        return self.nodes * self.node_gpus

    @property
    def name(self) -> str:
        return f"{self.nodes} x {self.node_gpus} {self.gpu}" if self.nodes > 1 else f"{self.node_gpus} {self.gpu}"


# GiB, operations, bandwidth, price
_CARDS = {
    "RTX 4090": (23.5, 165e12, 1.01e12, 0.4),
    "A100 40GB": (39.4, 312e12, 1.56e12, 1.1),
    "L40S": (44.4, 362e12, 0.86e12, 0.9),
}
_KINDS = {
    "A100": (79.1, 312e12, 2.0e12, 1.5),
    "H100": (79.1, 989e12, 3.35e12, 2.5),
    "H200": (139.8, 989e12, 4.8e12, 3.5),
}


def machines() -> list[Machine]:
    """1 and 8 of each kind; two nodes of 8 of those that train the papers' models.

    Main memory is assumed: 60 and 200 GiB beside one GPU, 0.5 and 1.8 TiB beside eight.
    """
    small = ((1, 1, 60.0), (1, 8, 503.0))
    large = ((1, 1, 200.0), (1, 8, 1843.0), (2, 8, 1843.0))
    return [
        Machine(gpu, nodes, each, size * GIB, operations, bandwidth, price, host * GIB)
        for kinds, counts in ((_CARDS, small), (_KINDS, large))
        for gpu, (size, operations, bandwidth, price) in kinds.items()
        for nodes, each, host in counts
    ]


def cards() -> list[Machine]:
    """One GPU of each kind, for runs that need no more."""
    return [machine for machine in machines() if machine.ranks == 1]


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one rollout step by phase; offload: of the optimiser in main memory, which the GPU waits for."""

    sampling: float
    logprobs: float
    updates: float
    offload: float

    @property
    def total(self) -> float:
        return self.sampling + self.logprobs + self.updates + self.offload


def step_time(config: RunConfig, shape: Shape, machine: Machine, memory: Memory) -> StepTime:
    """A step under the assumptions. Servers are taken to be as many GPUs again, with nothing else in their memory."""
    train = config.train
    response = RESPONSE_SHARE * train.max_new_tokens
    kept = train.prompts_per_step * train.samples_per_prompt
    decoding = _Decoding(config, shape, machine, memory, kept / KEPT_SHARE / machine.ranks)
    tokens = kept * (response + PROMPT_TOKENS)
    # causal attention: half of 4 L H D T
    forward = tokens * (
        2 * shape.parameters + 2 * shape.layers * shape.heads * shape.head_dim * (response + PROMPT_TOKENS)
    )
    rate = UTILISATION * machine.operations * machine.ranks
    passes = 3 + config.model.gradient_checkpointing - (config.model.lora_rank > 0)  # frozen: no gradient of weights
    refills = train.max_new_tokens * (config.sampler.margin == 1)
    sampling = decoding.seconds(train.max_new_tokens, refills)
    return StepTime(sampling, forward / rate, train.epochs * passes * forward / rate, _offload(config, shape, machine))


def _offload(config: RunConfig, shape: Shape, machine: Machine) -> float:
    """Seconds of all updates of a step in main memory: master and both moments are read and written there, the gradient
    is read; it and the weight cross between memories."""
    if not config.engine.offload:
        return 0.0
    trained = shape.adapter_parameters(config.model.lora_rank) or shape.parameters
    share = trained / machine.ranks
    crossing = 4 + number_bytes(config.model.dtype)
    return config.train.epochs * config.train.mini_batches * share * (28 / HOST_BANDWIDTH + crossing / LINK)


def benchmark_time(config: RunConfig, shape: Shape, machine: Machine, memory: Memory) -> float:
    """Seconds of measuring a run on its benchmarks on one GPU of the machine; responses are assumed as long as in
    training, the longest as long as the benchmark allows."""
    chosen = [load_benchmark(name) for name in config.data.benchmarks]
    return sum(
        _Decoding(config, shape, machine, memory, one.count * one.samples).seconds(one.max_new_tokens) for one in chosen
    )


@dataclass(frozen=True, slots=True)
class _Decoding:
    """Drawing `requests` responses of the assumed mean length on each GPU."""

    config: RunConfig
    shape: Shape
    machine: Machine
    memory: Memory
    requests: float

    def seconds(self, longest: int, again: int = 0) -> float:
        """The time of all, of which the longest has so many tokens; again: tokens of one that is decoded alone after
        them."""
        config, shape, machine = self.config, self.shape, self.machine
        size, response = number_bytes(config.model.dtype), RESPONSE_SHARE * config.train.max_new_tokens
        free = max(0.85 * machine.bytes - size * shape.parameters, 0.0)
        cache = free if self.memory.cache is None else self.memory.cache
        mean_length = PROMPT_TOKENS + response / 2
        length = longest_sequence(config) if sampler_backend(config.sampler.kind).full_rows else mean_length
        fitting = cache / (size * shape.cache_numbers * length)
        rows = max(1.0, min(config.sampler.max_rows, self.requests, fitting))
        decodes = max(self.requests * response / rows, longest)  # the longest response is drawn to its end
        read = size * (shape.parameters + rows * mean_length * shape.cache_numbers)
        by_bandwidth = read / (BANDWIDTH_SHARE * machine.bandwidth)
        alone = size * shape.parameters / (BANDWIDTH_SHARE * machine.bandwidth)
        by_operations = 2 * shape.parameters * rows / (UTILISATION * machine.operations)
        return decodes * max(by_bandwidth, by_operations) + again * alone
